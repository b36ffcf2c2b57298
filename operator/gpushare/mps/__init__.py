"""MPS daemons: their directories, their control protocol, and their supervisor."""
