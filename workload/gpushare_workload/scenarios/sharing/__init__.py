"""How programs use one GPU at the same time: pools, streams, graphs, mixtures, services."""
