"""The clock that agent and supervisor share: one writes heartbeats, and the other computes their age."""

import time


def boot_clock() -> float:
    """Seconds since boot: the same for all processes of this host, and never set back."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
