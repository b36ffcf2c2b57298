"""The kubelet's device plugin API: what it is offered, and what a container gets of it."""
