"""The admission webhook: pure decisions on pods, claims and GpuShares, behind a thin HTTP server."""
