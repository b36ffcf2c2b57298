"""The simulated driver: one process that owns GPUs, compute modes, contexts and running kernels."""
