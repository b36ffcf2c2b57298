"""What the agent publishes: GpuNode.status and metrics."""
