"""Linux processes, read from /proc, and signals to exactly the process that was read."""
