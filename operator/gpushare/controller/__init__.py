"""The operator: a cache of the cluster, one plan for the whole fleet, and the writes that carry it out."""
