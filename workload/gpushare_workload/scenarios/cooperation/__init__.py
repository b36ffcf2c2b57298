"""How several processes work on one result: pipelines, solvers, data-parallel training."""
