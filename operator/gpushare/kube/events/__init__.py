"""Kubernetes Events, each written once per change: values, correlator and recorder, named as in client-go."""
