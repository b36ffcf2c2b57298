"""`compare`: copies of a given program on one GPU, alone, in time slices and under MPS."""
