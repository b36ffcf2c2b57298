"""Events about faults of GPUs and MPS daemons, and about what happened during downtime."""
