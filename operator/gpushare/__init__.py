"""gpushare: NVIDIA GPUs shared between Kubernetes pods through MPS, with limits that hold."""
