"""Ending CUDA clients through their MPS daemon: departures, `maxWait`, clients left by a fault."""
