"""Who holds which device, as the kubelet's PodResources API tells it."""
