"""Which GPUs a share selects, and why it may not take one: facts of nodes and GPUs that a plan asks for often."""
