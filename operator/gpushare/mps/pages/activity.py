"""What a process says of its activity, held against what can be true. Pure.

A tenant writes the page, at any moment and any bytes. What is passed on is bounded. What cannot be true makes all of it
worth nothing: the page's process is named with that, and none of its figures count.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from gpushare.mps.pages.layout import ActivityPage
from gpushare.mps.wire import MAX_LONGEST, Kernel

SECOND = 10**9
LAUNCHES_PER_SECOND = 20_000_000
"""More than a process makes: a launch takes the driver a microsecond at the least, and it has one lock."""
MOST_SMS = 4096
_COUNTS = ("launches", "held_back", "by_floor", "on_part", "unpaced")
_DURATIONS = ("active", "gave_way")
_MOMENTS = ("last_launch", "active_since")
_SMS = ("part_sms", "all_sms")


@dataclass(frozen=True, slots=True)
class Activity:
    """Durations in seconds. `idle`: since its last launch; None: it made none. `counts`: of launches and SMs, by their
    names in the page.
    """

    idle: float | None
    active: float
    gave_way: float
    counts: Mapping[str, int]
    longest: tuple[Kernel, ...]


def fault(page: ActivityPage | None, before: ActivityPage | None, now: int, age: int) -> str:
    """What cannot be true, as a clause; empty: nothing. `before`: an earlier reading of the same page. `now`:
    CLOCK_MONOTONIC, `age`: of the process, in nanoseconds, a second more than it can be.
    """
    if page is None:
        return "its page does not begin as a page of activity does"
    for name in (*_COUNTS, *_DURATIONS) if before is not None else ():
        was, value = getattr(before, name), getattr(page, name)
        if value < was:
            return f"{name} went from {was} back to {value}"
    bounds = {
        **dict.fromkeys(_COUNTS, age * LAUNCHES_PER_SECOND // SECOND),
        **dict.fromkeys(_DURATIONS, age),
        **dict.fromkeys(_MOMENTS, now + SECOND),
        **dict.fromkeys(_SMS, MOST_SMS),
    }
    for name, most in bounds.items():
        if getattr(page, name) > most:
            return f"{name} is {getattr(page, name)}, and cannot be more than {most}"
    if max(page.gave_way_to) > page.gave_way + SECOND:  # they are written one after the other
        return f"gave_way_to has {max(page.gave_way_to)}, and gave_way {page.gave_way}"
    return ""


def activity(page: ActivityPage, now: int, age: int) -> Activity:
    """Of a page without a fault. `now`, `age`: as above."""
    under_way = max(0, now - page.active_since) if page.active_since else 0
    longest = sorted(page.longest, key=lambda kernel: kernel[1], reverse=True)
    return Activity(
        idle=max(0, now - page.last_launch) / SECOND if page.last_launch else None,
        active=min(page.active + under_way, age) / SECOND,
        gave_way=page.gave_way / SECOND,
        counts={name: getattr(page, name) for name in (*_COUNTS, *_SMS)},
        longest=tuple(
            Kernel(name=name.decode(), seconds=duration / SECOND)
            for name, duration in longest
            if duration <= age and name and all(32 <= byte < 127 for byte in name)
        )[:MAX_LONGEST],
    )
