"""The first seam: everything that we ask of NVML, as one small protocol with a real and a simulated side."""
