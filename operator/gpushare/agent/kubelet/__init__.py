"""The kubelet's device plugin API: what is offered, allocated and held."""
