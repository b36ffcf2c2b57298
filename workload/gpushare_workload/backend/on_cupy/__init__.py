"""The backend on a real GPU. `backend` is the entry; importing it needs CuPy and CUDA."""
