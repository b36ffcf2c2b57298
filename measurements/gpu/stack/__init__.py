"""The whole stack on a bare machine with a real GPU: packing, installation, and the suites.

The machine has root, Python with CuPy, the NVIDIA driver and cgroup v2, and neither network nor container runtime nor
registry. So programs and the operator's image travel with the work tree; the image of the clients is made there, from
the machine's own Python. measurements/README.md says how to run it.
"""
