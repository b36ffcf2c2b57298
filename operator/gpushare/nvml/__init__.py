"""NVML as one small protocol, with a real and a simulated implementation."""
