"""Linux processes: what /proc says of them, and signals to exactly the process that was read."""
