"""The one clock that agent and supervisor share: heartbeats written by one are judged by the other."""

import time


def boot_clock() -> float:
    """Seconds since boot, the same for every process of this host, and never set back."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
