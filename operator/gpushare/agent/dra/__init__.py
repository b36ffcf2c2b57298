"""Shares that are delivered by ResourceClaim, on the node: ResourceSlices out, prepared claims in (KEP-4381, -5075)."""
