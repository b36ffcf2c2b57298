"""The figures in what a program prints: a rate, or counts of work done, and latencies in milliseconds.

Guarantees: what cannot be a figure (text, NaN, infinity, a negative number) is no figure, and raises nothing.
"""

import json
import math
import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from gpushare.kubectl.rules.trial.cases import CaseEnded, Ending, WindowFigures
from gpushare.messages.wording import count_of

LINE_CHARACTERS = 65536
"""Longer lines are not searched."""
PATTERN_CHARACTERS = 500
TAIL_LINES = 12
TAIL_CHARACTERS = 300
APART = 0.2
"""Copies whose ends lie further apart, as a part of the run, did not run beside each other all the time."""


@dataclass(frozen=True, slots=True)
class FigureReader:
    """Finds figures in a line: by a pattern with one group, or by the name of a JSON field (`a.b` for b within a)."""

    pattern: re.Pattern[str] | None = None
    field: str = ""

    @classmethod
    def of(cls, option: str, regex: str | None, field: str | None) -> "FigureReader | None":
        """`option` is the beginning of the two options' names. Raises ValueError naming the option and its value."""
        if regex is not None and field is not None:
            raise ValueError(f"{option}-regex {regex!r} and {option}-json {field!r}: give one of them")
        if regex is not None:
            return cls(pattern=_compiled(f"{option}-regex", regex))
        if field is not None:
            if not all(field.split(".")):
                raise ValueError(f"{option}-json {field!r}: write the name of a field, such as rate or result.rate")
            return cls(field=field)
        return None

    def values(self, line: str) -> tuple[float, ...]:
        """Every figure of the line. A list of numbers in a JSON field is several."""
        if len(line) > LINE_CHARACTERS:
            return ()
        if self.pattern is not None:
            return _figures(self.pattern.findall(line))
        if not line.lstrip().startswith("{"):
            return ()
        try:
            value: Any = json.loads(line)
        except (ValueError, RecursionError):
            return ()
        for name in self.field.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        return _figures(value if isinstance(value, list) else [value])


def _compiled(option: str, text: str) -> re.Pattern[str]:
    if len(text) > PATTERN_CHARACTERS:
        raise ValueError(f"{option}: {len(text)} characters, at most {PATTERN_CHARACTERS} are taken")
    try:
        pattern = re.compile(text)
    except re.error as error:
        raise ValueError(f"{option} {text!r}: no regular expression: {error}") from None
    if pattern.groups != 1:
        raise ValueError(f"{option} {text!r}: has {pattern.groups} groups; put the number, and only it, in parentheses")
    return pattern


def _figures(values: Sequence[Any]) -> tuple[float, ...]:
    figures = []
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            continue
        try:
            figure = float(value.replace(",", "") if isinstance(value, str) else value)
        except (ValueError, OverflowError):
            continue
        if math.isfinite(figure) and figure >= 0:
            figures.append(figure)
    return tuple(figures)


@dataclass(frozen=True, slots=True)
class PrintedLine:
    """The figures of one printed line. `at`: when it was printed, in seconds of any one clock."""

    at: float
    rates: tuple[float, ...]
    latencies: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class CopyFigures:
    """What one copy did in one window. `rate`: per second, above 0; `latencies`: milliseconds."""

    rate: float
    latencies: tuple[float, ...] = ()


class NoFiguresError(Exception):
    """A copy printed too little for a rate. The text says what is missing."""


@contextmanager
def figures_from(who: str) -> Iterator[None]:
    """Says in a NoFiguresError whose figures are missing."""
    try:
        yield
    except NoFiguresError as error:
        raise NoFiguresError(f"{who}: {error}") from None


@dataclass(frozen=True, slots=True)
class PrintedFigures:
    """`rate` None: the rate is one run per wall time. `counts`: what `rate` finds is work done, no rate per second."""

    rate: FigureReader | None = None
    counts: bool = False
    latency: FigureReader | None = None

    def __post_init__(self) -> None:
        if self.counts and self.rate is None:
            raise ValueError("--counts: says what --rate-regex or --rate-json finds; give one of them")

    def read(self, at: float, line: str) -> PrintedLine | None:
        """The figures of a line; None for a line without a figure."""
        rates = self.rate.values(line) if self.rate else ()
        latencies = self.latency.values(line) if self.latency else ()
        return PrintedLine(at, rates, latencies) if rates or latencies else None

    def within(self, readings: Sequence[PrintedLine], begin: float, end: float) -> CopyFigures:
        """The figures between two moments: the mean of the rates, or the work from the first line to the last.

        Raises NoFiguresError.
        """
        inside = [reading for reading in readings if begin < reading.at <= end]
        rated = [reading for reading in inside if reading.rates]
        latencies = tuple(value for reading in inside for value in reading.latencies)
        if self.counts:
            if len(rated) < 2 or rated[-1].at <= rated[0].at:
                raise NoFiguresError(
                    f"{count_of(len(rated), 'line')} with a count in a window of {end - begin:.1f} s, at least 2 are "
                    "needed: let the program print more often, or measure longer"
                )
            work = sum(value for reading in rated[1:] for value in reading.rates)
            return _checked(work / (rated[-1].at - rated[0].at), latencies)
        values = [value for reading in rated for value in reading.rates]
        if not values:
            raise NoFiguresError(
                f"no line with a rate in a window of {end - begin:.1f} s: let the program print more often, measure "
                "longer, or correct the pattern or field"
            )
        return _checked(sum(values) / len(values), latencies)

    def whole(self, readings: Sequence[PrintedLine], seconds: float) -> CopyFigures:
        """The figures of a run to its end: the last rate, the sum of the counts per second, or one run per `seconds`.

        Raises NoFiguresError.
        """
        latencies = tuple(value for reading in readings for value in reading.latencies)
        if self.rate is None:
            return _checked(1 / seconds, latencies)
        values = [value for reading in readings for value in reading.rates]
        if not values:
            raise NoFiguresError("it ended without a line with a rate: correct the pattern or field")
        return _checked(sum(values) / seconds if self.counts else values[-1], latencies)


def _checked(rate: float, latencies: tuple[float, ...]) -> CopyFigures:
    if rate <= 0:
        raise NoFiguresError("its rate is 0: it did nothing in the window")
    return CopyFigures(rate, latencies)


def percentile(values: Sequence[float], percent: float) -> float | None:
    """Nearest rank; None without values."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]


OUT_OF_MEMORY = re.compile(
    r"out of memory|OutOfMemory|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|RESOURCE_EXHAUSTED|"
    r"is less than desired GPU memory utilization",
    re.IGNORECASE,
)


def lacks_memory(output: str) -> bool:
    """Whether the last lines of a program that failed say that it got no GPU memory."""
    return OUT_OF_MEMORY.search(output) is not None


def last_lines(printed: Iterable[str]) -> str:
    """The end of what a copy printed, for a message."""
    kept = deque((line[:TAIL_CHARACTERS] for line in printed if line.strip()), TAIL_LINES)
    return "\n".join(kept) or "(it printed nothing)"


NO_FIGURE = (
    "no line that it printed on standard output had a figure: does --rate-json or --rate-regex name what it prints? "
    "Without them and without --seconds, runs to the end are timed"
)


def ended_early(who: str, how: str, code: int, lines: str, figures: bool) -> CaseEnded:
    """`who`: such as `copy 2 of 4`. `how` it ended, as a clause. `code`: its exit code, or less than 0 for a signal.
    `figures`: a line of it had one.
    """
    if code and lacks_memory(lines):
        return CaseEnded(Ending.NO_MEMORY, f"{who} got no GPU memory; its last lines:\n{lines}")
    longer = ": let it run longer, or leave --seconds out to measure runs to their end"
    early = "" if code else (longer if figures else f" and {NO_FIGURE}")
    return CaseEnded(Ending.FAILED, f"{who} {how}{early}; its last lines:\n{lines}")


def note_of_ends(ends: Sequence[float], longest: float, known_to: float = 0.0) -> str:
    """A sentence where copies that ran to their end did not end together, else empty.

    `ends`: their ends in seconds of any one clock that is known to `known_to`; `longest`: seconds of the longest run.
    """
    between = max(ends) - min(ends)
    if between <= known_to or between / longest <= APART:
        return ""
    return f"copies ended up to {between:.1f} s apart: they did not run beside each other all the time"


def note_of_latency(printed: PrintedFigures, windows: Sequence[WindowFigures]) -> str:
    """A sentence where latencies were asked for and none was printed, else empty."""
    if printed.latency is None or any(value is not None for window in windows for value in window.p99_ms):
        return ""
    return "no line within the windows had a latency: does --latency-json or --latency-regex name what is printed?"


def figures_by_program(programs: int, owners: Sequence[int], figures: Sequence[CopyFigures]) -> WindowFigures:
    """One window of all copies. `owners`: of each copy, the place of its program among so many."""
    return window_of(
        [[copy for owner, copy in zip(owners, figures, strict=True) if owner == place] for place in range(programs)]
    )


def window_of(figures: Sequence[Sequence[CopyFigures]]) -> WindowFigures:
    """`figures`: of each program, those of its copies in one window."""
    latencies = [[value for copy in copies for value in copy.latencies] for copies in figures]
    return WindowFigures(
        tuple(tuple(copy.rate for copy in copies) for copies in figures),
        tuple(percentile(values, 50) for values in latencies),
        tuple(percentile(values, 99) for values in latencies),
        tuple(
            max((p99 for copy in copies if (p99 := percentile(copy.latencies, 99)) is not None), default=None)
            for copies in figures
        ),
    )
