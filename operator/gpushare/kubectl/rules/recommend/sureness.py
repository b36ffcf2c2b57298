"""How sure a history makes, and what no history of these metrics can show. Pure."""

from enum import StrEnum

from gpushare.kubectl.rules.recommend.history import HistorySource, Observed, ShareHistory
from gpushare.messages.wording import count_of

DAY = 86400.0
LEAST_SECONDS = {HistorySource.PROMETHEUS: DAY, HistorySource.WATCH: 60.0}
"""A history from first to last sample, below which nothing is recommended."""
LEAST_SAMPLES = 10
LEAST_COVERAGE = 0.5
"""Part of the samples since the first one that are there."""
SURE_SECONDS = 7 * DAY
SURE_COVERAGE = 0.9
NEARLY = 0.98
"""The first sample of a day that was asked about is some steps later."""
LAST_STEPS = 0.05
"""A part of a unit."""


class Sureness(StrEnum):
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


def sureness_of(history: ShareHistory, seen: Observed) -> Sureness:
    """The sureness of a history that is long enough: a watch is never more than a glimpse."""
    if history.source is HistorySource.WATCH:
        return Sureness.LOW
    long = history.end - seen.since >= NEARLY * SURE_SECONDS
    return Sureness.HIGH if long and coverage(history, seen) >= SURE_COVERAGE else Sureness.MEDIUM


def at_most_medium(sure: Sureness) -> Sureness:
    """The sureness of advice whose figures are sure, and whose gain they do not show."""
    return Sureness.MEDIUM if sure is Sureness.HIGH else sure


def too_short(history: ShareHistory, seen: Observed | None, of: str) -> str:
    """Why nothing follows, as a sentence; empty where the history is long enough. `of`: what was seen."""
    if seen is None:
        return f"{of}: not seen in {duration(history.end - history.begin)}, so nothing is recommended"
    seconds, least = history.end - seen.since, LEAST_SECONDS[history.source]
    if seconds < NEARLY * least:
        return (
            f"{of}: seen for {duration(seconds)}, too short a history: at least {duration(least)} is needed, "
            "so nothing is recommended"
        )
    if seen.samples < LEAST_SAMPLES:
        return (
            f"{of}: {count_of(seen.samples, 'sample')}, at least {LEAST_SAMPLES} are needed, so nothing is recommended"
        )
    if (part := coverage(history, seen)) < LEAST_COVERAGE:
        return (
            f"{of}: seen in {part:.0%} of the samples since the first one, at least {LEAST_COVERAGE:.0%} is needed, "
            "so nothing is recommended"
        )
    return ""


def length(history: ShareHistory, seen: Observed) -> str:
    """A phrase such as `7d, 2016 samples`."""
    return f"{duration(history.end - seen.since)}, {count_of(seen.samples, 'sample')}"


def coverage(history: ShareHistory, seen: Observed) -> float:
    """The part of the samples from the first one on that are there, of 1."""
    expected = max(1.0, (history.end - seen.since) / history.step)
    return min(1.0, seen.samples / expected)


def duration(seconds: float) -> str:
    """A text such as `7d`, `36h`, `90m` or `45s`: in the largest unit of which there are two; nearly a whole one
    counts."""
    for unit, name in ((DAY, "d"), (3600.0, "h"), (60.0, "m")):
        if seconds >= (2 - LAST_STEPS) * unit or seconds == unit:
            return f"{int(seconds / unit + LAST_STEPS)}{name}"
    return f"{int(seconds)}s"


CANNOT_KNOW = (
    "Peaks between two scrapes, and what a program does rarely or has not done yet: a batch of another size, a new "
    "version.",
    "How fast a program is: utilisation is the part of the time in which any kernel ran, and a GPU that is busy all "
    "the time may have room. Measure with `kubectl gpushare trial` before and after a change of perGpu.",
    "What a program does: its launches and active time are its own word, and one that launches past the library says "
    "nothing.",
    "What was promised to whom: a grant may be reserved on purpose. Pods whose annotation asks for more than a "
    "lowered default are refused from then on, unless memory.max allows it.",
)
