"""Reports of GPU faults, and of what happened while no agent ran."""
