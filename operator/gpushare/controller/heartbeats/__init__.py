"""Whether each node's agent runs: read from its Lease, told in its GpuNode's conditions."""
