"""The benchmark: how fast N clients are together on one GPU, by the way in which they share it (docs/workload.md)."""
