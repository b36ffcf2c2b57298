"""By what processes and containers are known to whoever serves clients of a GPU."""

Container = tuple[str, str]
"""(pod's uid, container's name): the same one after a restart, whatever its id."""
Identity = tuple[int, int]
"""(PID, start time in clock ticks since boot)."""
