"""This process and others, as the kernel knows them: /proc, threads, the heap, a time limit that holds at shutdown."""
