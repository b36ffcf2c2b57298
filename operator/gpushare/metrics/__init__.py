"""What every part exports to Prometheus alike: a registry of its own, figures of a moment, the endpoint."""
