"""What stands in for GPUs and for NVIDIA's driver where a way brings none of its own and the machine has no GPU."""
