"""The news whether each node's agent runs: read from its Lease, written into its GpuNode's conditions."""
