"""Leases (coordination.k8s.io): by which replicas elect the active one, and agents show that they run."""
