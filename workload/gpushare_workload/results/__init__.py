"""What a benchmark measured: plain values, the figures computed from them, and their JSON. Nothing here does I/O."""
