"""The kubelet's device plugin API and its PodResources: what is offered, allocated and held."""
