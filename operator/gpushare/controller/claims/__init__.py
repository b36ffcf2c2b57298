"""GPUs delivered by ResourceClaim: the classes and templates of shares, and who was allocated what."""
