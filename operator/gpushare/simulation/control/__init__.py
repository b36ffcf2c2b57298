"""The simulated MPS, started by the executables in `bin/`: control program, control daemon and MPS server."""
