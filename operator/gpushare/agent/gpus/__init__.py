"""This node's GPUs: what NVML shows, where the driver lies, what a container gets of them."""
