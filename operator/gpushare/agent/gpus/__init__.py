"""This node's GPUs: NVML's readings, the driver's files, and the devices and mounts that a container gets."""
