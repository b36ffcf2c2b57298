"""The supervisor of an MPS pod: it observes each GPU's daemon, decides about it, and reports to the agent."""
