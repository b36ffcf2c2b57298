"""The operator's copy of the cluster: what watches and lists show of it, and the snapshot from which a plan is made."""
