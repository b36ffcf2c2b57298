"""Prometheus metrics, the same way in every part: a registry of its own, gauges from snapshots, the endpoint."""
