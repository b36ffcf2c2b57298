"""The admission webhook: pure decisions on pods and GpuShares beside a thin HTTP shell."""
