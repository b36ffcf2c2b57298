"""MPS on a bare machine: modes of sharing, a private daemon, and who holds the GPU."""
