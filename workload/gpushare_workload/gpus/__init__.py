"""The GPUs that this process may use: which they are, who is on them, and what this container was granted of them."""
