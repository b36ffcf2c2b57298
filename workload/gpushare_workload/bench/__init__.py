"""The benchmark: the rate of N clients together on one GPU, for each way of sharing it (docs/workload.md)."""
