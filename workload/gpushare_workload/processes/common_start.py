"""A common start for processes that cannot reach each other: the pods of one Job begin at one wall-clock time.

Nodes must synchronize their clocks (NTP does, to milliseconds). Processes of one machine share a clock.
"""

import argparse
import os
import time
from datetime import UTC, datetime

from gpushare_workload.processes.stopping import Stop

VARIABLE = "WORKLOAD_START_AT"
"""The variable is not GPUSHARE_…: the webhook reserves those names for grants and refuses them in a tenant's pod."""
FARTHEST_SECONDS = 24 * 3600.0
"""A start that is more than a day away is a mistyped one."""


def add_argument(parser: "argparse.ArgumentParser | argparse._ArgumentGroup") -> None:
    parser.add_argument(
        "--start-at",
        metavar="TIME",
        default=os.environ.get(VARIABLE, ""),
        help="begin at this time, together with other pods: RFC 3339 or seconds since 1970 "
        f"(default: ${VARIABLE}, else at once)",
    )


def parse(text: str, name: str = "--start-at") -> float | None:
    """Seconds since 1970, or None (begin at once) for an empty `text`.

    Raises ValueError naming `name` and the value.
    """
    text = text.strip()
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = _rfc3339(text, name)
    if not 0 < seconds < float("inf"):
        raise ValueError(f"{name} {text!r}: is no time after 1970")
    return seconds


def delay(start_at: float, now: float) -> float:
    """Seconds until the start. Raises ValueError when it has passed or is more than a day away."""
    remaining = start_at - now
    if remaining < 0:
        raise ValueError(f"the common start passed {-remaining:.1f} s before this process was ready: set it later")
    if remaining > FARTHEST_SECONDS:
        raise ValueError(f"the common start is {remaining / 3600:.0f} hours away: set one within a day")
    return remaining


def wait(start_at: float | None, stop: Stop) -> None:
    """Returns at the start, or at once for None. Raises StoppedError when the process is asked to end before it."""
    if start_at is not None:
        stop.wait(delay(start_at, time.time()))
    stop.check()


def _rfc3339(text: str, name: str) -> float:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"{name} {text!r}: give RFC 3339 (2026-11-21T12:00:00Z) or seconds since 1970") from error
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
