"""A common start for processes that cannot talk to each other: pods of one Job begin at one wall-clock time.

Nodes must keep their clocks together (NTP does, to milliseconds); processes of one machine share theirs anyway.
"""

import argparse
import os
import time
from datetime import UTC, datetime

from gpushare_workload.stopping import Stop

VARIABLE = "WORKLOAD_START_AT"
"""Not GPUSHARE_…: the webhook keeps those for what a pod was granted, and refuses a tenant's."""
FARTHEST = 24 * 3600.0
"""Seconds: a start further away than a day is a mistyped one."""


def add_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--start-at",
        metavar="TIME",
        default=os.environ.get(VARIABLE, ""),
        help=f"begin at that time, RFC 3339 or seconds since 1970, together with other pods (default: ${VARIABLE})",
    )


def parse(text: str, name: str = "--start-at") -> float | None:
    """Seconds since 1970; None where `text` is empty: begin at once. Raises ValueError naming `name` and the value."""
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
    """Seconds until the start. Raises ValueError where it has passed, or is more than a day away."""
    remaining = start_at - now
    if remaining < 0:
        raise ValueError(f"the common start passed {-remaining:.1f} s before this process was ready: set it later")
    if remaining > FARTHEST:
        raise ValueError(f"the common start is {remaining / 3600:.0f} hours away: set one within a day")
    return remaining


def wait(start_at: float | None, stop: Stop) -> None:
    """Returns at the start, or at once where there is none; raises StoppedError when asked to end before."""
    if start_at is not None:
        stop.wait(delay(start_at, time.time()))
    stop.check()


def _rfc3339(text: str, name: str) -> float:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"{name} {text!r}: give RFC 3339 (2026-11-21T12:00:00Z) or seconds since 1970") from error
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
