"""What a trial runs, in which order, and when it stops. Pure.

A *case* is a mode with a number of copies of each program. The first repeat runs upwards from one copy alone, and finds
where that ends. Each further repeat runs every case that worked again, in another order, so that a drifting clock
favours none.
"""

import random
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import fsum

from gpushare.kubectl.rules.trial.protect import JobWay, ProtectTerms
from gpushare.messages.wording import count_of, plural

MOST_COPIES = 48
"""MPS contexts that every driver takes on one GPU."""
MOST_PROGRAMS = 8
MORE = 1.05
"""Copies that bring less than this factor bring nothing more."""


class TrialMode(StrEnum):
    """How copies share the GPU."""

    CAPACITY = "capacity"
    ALONE = "alone"
    SLICES = "time-slicing"
    MPS = "mps"
    CAPPED = "mps-capped"
    SLOTS = "slots"

    @property
    def under_mps(self) -> bool:
        return self in (TrialMode.MPS, TrialMode.CAPPED, TrialMode.SLOTS)


TITLES = {
    TrialMode.CAPACITY: "alone, without a rate",
    TrialMode.ALONE: "alone",
    TrialMode.SLICES: "in time slices",
    TrialMode.MPS: "under MPS",
    TrialMode.CAPPED: "under MPS with caps",
    TrialMode.SLOTS: "in slots of the share",
}
BARE = (TrialMode.SLICES, TrialMode.MPS, TrialMode.CAPPED)
"""The modes on a bare machine."""


class Ending(StrEnum):
    """How the run of a case ended."""

    MEASURED = "measured"
    NO_MEMORY = "out of memory"
    NO_ROOM = "no room"
    FAILED = "failed"


class CaseEnded(Exception):
    """A case cannot be measured. `ending` says how it ended, the text why."""

    def __init__(self, ending: Ending, reason: str) -> None:
        super().__init__(reason)
        self.ending = ending


@dataclass(frozen=True, slots=True)
class TrialCase:
    """`copies`: of each program, so one number for copies of one program, and two for a pair. `way`: how the second of
    a pair runs beside the first, where that is protected.
    """

    mode: TrialMode
    copies: tuple[int, ...]
    way: JobWay | None = None

    @property
    def total(self) -> int:
        return sum(self.copies)


@dataclass(frozen=True, slots=True)
class WindowFigures:
    """One window. `rates`: per second, by program and copy. Latencies are by program, None if none was printed;
    `worst_p99_ms`: of the copy that waits longest, empty in records from before it was kept.
    """

    rates: tuple[tuple[float, ...], ...]
    p50_ms: tuple[float | None, ...]
    p99_ms: tuple[float | None, ...]
    worst_p99_ms: tuple[float | None, ...] = ()


@dataclass(frozen=True, slots=True)
class CaseOutcome:
    """One run of a case. `windows` is empty unless it was measured; then `reason` is empty.

    `busy_percent`: the mean of NVML's utilisation; `memory_mib`: the GPU's peak less what it had before, of all copies.
    `used_gpu` False: nothing of it was ever on the GPU, or launched anything there; None: not known.
    """

    case: TrialCase
    repeat: int
    ending: Ending
    windows: tuple[WindowFigures, ...] = ()
    reason: str = ""
    busy_percent: float | None = None
    memory_mib: int | None = None
    notes: tuple[str, ...] = ()
    used_gpu: bool | None = None


@dataclass(frozen=True, slots=True)
class TrialPlan:
    """`copies`: numbers above 1, ascending; not used for several `programs`, which run one of each. `protect`: what the
    first of two programs is to keep beside the second; None: nothing.
    """

    modes: tuple[TrialMode, ...] = BARE
    copies: tuple[int, ...] = (2, 4, 8)
    programs: int = 1
    repeats: int = 3
    seed: int = 1
    protect: ProtectTerms | None = None

    @classmethod
    def of(
        cls, modes: Sequence[TrialMode], copies: Sequence[int], programs: int, repeats: int, seed: int
    ) -> "TrialPlan":
        """Raises ValueError naming what is out of bounds, with its value."""
        for count in copies:
            if not 1 <= count <= MOST_COPIES:
                raise ValueError(f"--copies {count}: a GPU takes 1 to {MOST_COPIES} MPS clients")
        further = tuple(sorted({count for count in copies if count > 1}))
        if programs == 1 and not further:
            raise ValueError("--copies 1: name at least one number above 1 to compare with")
        if not 1 <= repeats <= 100:
            raise ValueError(f"--repeats {repeats}: 1 to 100")
        return cls(tuple(modes), further, programs, repeats, seed)

    def alone(self) -> list[TrialCase]:
        """One copy of each program by itself: what everything else is compared with."""
        return [
            TrialCase(TrialMode.ALONE, tuple(int(place == program) for place in range(self.programs)))
            for program in range(self.programs)
        ]

    @property
    def fewest(self) -> int:
        """Copies that run beside each other at least."""
        return self.stages()[1][0].total

    def stages(self) -> list[list[TrialCase]]:
        """The cases in the order of the first repeat; each stage is a number of copies."""
        counts = [(count,) for count in self.copies] if self.programs == 1 else [(1,) * self.programs]
        return [self.alone(), *([TrialCase(mode, copies) for mode in self.modes] for copies in counts)]


def news(texts: Iterable[str], said: set[str]) -> list[str]:
    """The texts that were not said yet, in their order; they count as said from now on."""
    unsaid = [text for text in dict.fromkeys(texts) if text and text not in said]
    said.update(unsaid)
    return unsaid


def next_run(plan: TrialPlan, outcomes: Sequence[CaseOutcome]) -> tuple[int, TrialCase] | None:
    """(repeat, case) to run next, given everything that has run; None: the trial is over."""
    first = {outcome.case: outcome for outcome in outcomes if outcome.repeat == 0}
    stopped: set[TrialMode] = set()
    best = 1.0
    for number, stage in enumerate(plan.stages()):
        stage = [case for case in stage if case.mode not in stopped]
        for case in stage:
            if case not in first:
                return 0, case
        if number == 0:
            if any(first[case].ending is not Ending.MEASURED or first[case].used_gpu is False for case in stage):
                return None
            continue
        stopped |= {case.mode for case in stage if first[case].ending is not Ending.MEASURED}
        of_cases = [gains(first[case], outcomes) for case in stage]
        gained = max((statistics.median(windows) for windows in of_cases if windows), default=0.0)
        if gained < best * MORE:
            break
        best = gained
    kept = [case for case, outcome in first.items() if outcome.ending is Ending.MEASURED]
    if all(case.mode is TrialMode.ALONE for case in kept):
        return None  # there is nothing to compare with them
    ran = {(outcome.repeat, outcome.case) for outcome in outcomes}
    for repeat in range(1, plan.repeats):
        shuffle = random.Random(f"{plan.seed}/{repeat}")  # noqa: S311 - an order, no secret
        for case in shuffle.sample(kept, len(kept)):
            if (repeat, case) not in ran:
                return repeat, case
    return None


def titled(case: TrialCase) -> str:
    """How it shares the GPU."""
    return TITLES[case.mode] + (f", the job {case.way}" if case.way else "")


def not_measured(outcomes: Sequence[CaseOutcome]) -> list[str]:
    """One sentence for each case that did not work."""
    return [
        f"{counted(outcome.case)} {titled(outcome.case)}: {outcome.ending.value}"
        f"{f' ({outcome.reason})' if outcome.reason else ''}"
        for outcome in outcomes
        if outcome.ending is not Ending.MEASURED
    ]


def why_stopped(plan: TrialPlan, outcomes: Sequence[CaseOutcome]) -> list[str]:
    """One sentence for each number of copies, or mode, that the trial left out or that did not work."""
    sentences = not_measured(outcomes)
    ran = {outcome.case.copies for outcome in outcomes}
    left = [stage[0] for stage in plan.stages()[1:] if stage and stage[0].copies not in ran]
    over = next_run(plan, outcomes) is None  # else it was interrupted, and nothing was left out for a reason
    alone = (outcome.ending for outcome in outcomes if outcome.case.mode is TrialMode.ALONE)
    if left and over and all(ending is Ending.MEASURED for ending in alone):
        most = max((outcome.case.total for outcome in outcomes), default=1)
        numbers = ", ".join(str(case.total) for case in left)
        if any(outcome.ending is Ending.MEASURED and outcome.case.total == most for outcome in outcomes):
            why = f"{most} brought less than {MORE - 1:.0%} more than fewer did"
        else:
            why = f"{most} did not work"
        sentences.append(f"{numbers} {plural(left[-1].total, 'copy')} were not run: {why}")
    return sentences


def gains(outcome: CaseOutcome, outcomes: Sequence[CaseOutcome]) -> list[float]:
    """The work of all copies, counted in GPUs that each run one copy alone, in each window.

    It is compared with each window of the programs alone in the same repeat, so that the spread of these is in the
    spread of the gain too. Empty if they were not measured.
    """
    return [gain for alone in alone_rates(outcome, outcomes) for gain in work(outcome, alone)]


def work(outcome: CaseOutcome, alone: Mapping[int, float]) -> list[float]:
    """The gain in each window, where `alone` has each program's rate alone."""
    return [fsum(speeds(window, alone)) for window in outcome.windows]


def speeds(window: WindowFigures, alone: Mapping[int, float]) -> list[float]:
    """The speed of each copy as a part of its speed alone, where `alone` has each program's rate alone."""
    return [rate / alone[program] for program, copies in enumerate(window.rates) for rate in copies]


def alone_rates(outcome: CaseOutcome, outcomes: Sequence[CaseOutcome]) -> list[dict[int, float]]:
    """The rate of each program of the case alone, in the same repeat, window by window."""
    return [
        {program: window.rates[program][0] for program, window in windows.items()}
        for windows in alone_windows(outcome, outcomes)
    ]


def alone_windows(outcome: CaseOutcome, outcomes: Sequence[CaseOutcome]) -> list[dict[int, WindowFigures]]:
    """The windows of each program of the case alone, in the same repeat, the first of each, then the second, and so on.
    Empty where one of them was not measured alone.
    """
    if outcome.case.mode is TrialMode.CAPACITY:
        return []
    by_program: dict[int, tuple[WindowFigures, ...]] = {}
    for other in outcomes:
        if other.case.mode is TrialMode.ALONE and other.repeat == outcome.repeat:
            program = other.case.copies.index(1)
            if outcome.case.copies[program]:
                by_program[program] = other.windows
    if len(by_program) < sum(1 for count in outcome.case.copies if count):
        return []
    return [dict(zip(by_program, windows, strict=True)) for windows in zip(*by_program.values(), strict=False)]


def counted(case: TrialCase) -> str:
    """What runs in a case, such as `4 copies`; of several programs `the pair` or `all 3 programs`, or `program 1`."""
    if len(case.copies) > 1:
        together = "the pair" if len(case.copies) == 2 else f"all {len(case.copies)} programs"
        return f"program {case.copies.index(1) + 1}" if case.total == 1 else together
    return "one copy" if case.total == 1 else count_of(case.total, "copy")
