"""The runs of a trial as one row for each case, with its spread, and a table for people. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from math import fsum
from typing import Any

from gpushare.kubectl.rules.trial.cases import (
    CaseOutcome,
    Ending,
    TrialCase,
    TrialMode,
    WindowFigures,
    alone_rates,
    alone_windows,
    gains,
    speeds,
    titled,
    work,
)
from gpushare.kubectl.rules.trial.spread import Spread


@dataclass(frozen=True, slots=True)
class TrialRow:
    """One case. `gain`: the work of all copies, in GPUs that each run one copy alone. `of_slices`: as a multiple of the
    time slices with as many copies. `speed`: of each copy, as a part of its speed alone; `slowest`: that of the slowest
    copy, and `of_mean` as a part of the mean of all. `p99_times`: the p99 of the copy that waits longest, as a multiple
    of that of its program alone. Memory in MiB for each copy. `samples`: windows of all `runs` together. Only runs
    count whose repeat has one copy alone to compare with. `used_gpu` False: no run of it was ever on the GPU.
    """

    case: TrialCase
    ending: Ending
    samples: int
    runs: int
    rates: tuple[Spread | None, ...]
    """Per second, of all copies of each program together."""
    gain: Spread | None
    of_slices: Spread | None
    speed: Spread | None
    p50_ms: tuple[Spread | None, ...]
    p99_ms: tuple[Spread | None, ...]
    busy_percent: Spread | None
    memory_mib: int | None
    notes: tuple[str, ...] = ()
    slowest: Spread | None = None
    of_mean: Spread | None = None
    p99_times: Spread | None = None
    used_gpu: bool | None = None

    def as_json(self) -> dict[str, Any]:
        values = asdict(self)
        del values["case"]
        return case_json(self.case) | values | {"ending": self.ending.value}


def case_json(case: TrialCase) -> dict[str, Any]:
    way = {"way": case.way.as_json()} if case.way else {}
    return {"mode": case.mode.value, "copies": list(case.copies), **way}


def rows_of(outcomes: Sequence[CaseOutcome]) -> list[TrialRow]:
    """One row for each case, in the order in which they ran first."""
    cases = dict.fromkeys(outcome.case for outcome in outcomes)
    return [_row(case, outcomes) for case in cases]


def _row(case: TrialCase, outcomes: Sequence[CaseOutcome]) -> TrialRow:
    of_case = [outcome for outcome in outcomes if outcome.case == case]
    measured = [outcome for outcome in of_case if outcome.windows]
    compared = [(outcome, each_gain) for outcome in measured if (each_gain := gains(outcome, outcomes))]
    windows = [window for outcome in measured for window in outcome.windows]
    memory = [outcome.memory_mib for outcome in measured if outcome.memory_mib is not None]
    programs = range(len(case.copies))
    every_gain = [gain for _, each_gain in compared for gain in each_gain]
    slowest = [least for outcome, _ in compared for least in _slowest(outcome, outcomes)]
    used = [outcome.used_gpu for outcome in of_case if outcome.used_gpu is not None]
    return TrialRow(
        case=case,
        ending=next((outcome.ending for outcome in of_case if outcome.ending is not Ending.MEASURED), Ending.MEASURED),
        samples=sum(len(outcome.windows) for outcome, _ in compared),
        runs=len(compared),
        rates=tuple(_rates(windows, program) for program in programs),
        gain=Spread.of_any(every_gain),
        of_slices=Spread.of_any(_of_slices(of_case, outcomes)),
        speed=Spread.of_any([gain / case.total for gain in every_gain]),
        p50_ms=tuple(_latency([window.p50_ms[program] for window in windows]) for program in programs),
        p99_ms=tuple(_latency([window.p99_ms[program] for window in windows]) for program in programs),
        busy_percent=Spread.of_any([outcome.busy_percent for outcome in measured if outcome.busy_percent is not None]),
        memory_mib=-(-max(memory) // case.total) if memory else None,
        notes=tuple(dict.fromkeys(note for outcome in of_case for note in outcome.notes)),
        slowest=Spread.of_any(slowest),
        of_mean=Spread.of_any([least * case.total / gain for least, gain in zip(slowest, every_gain, strict=True)]),
        p99_times=Spread.of_any([times for outcome, _ in compared for times in _p99_times(outcome, outcomes)]),
        used_gpu=any(used) if used else None,
    )


def _slowest(outcome: CaseOutcome, outcomes: Sequence[CaseOutcome]) -> list[float]:
    """The speed of the slowest copy, as a part of its speed alone, in the order of `gains`."""
    return [min(speeds(window, alone)) for alone in alone_rates(outcome, outcomes) for window in outcome.windows]


def _p99_times(outcome: CaseOutcome, outcomes: Sequence[CaseOutcome]) -> list[float]:
    """The p99 of who waits longest against that of its program alone, in each window. Alone the median of the windows
    of the repeat counts: a p99 varies far more than a rate, and each outlier alone would be in every quotient.
    """
    if outcome.case.mode is TrialMode.ALONE:
        return []
    alone = {
        program: _latency(windows[program].p99_ms[program] for windows in alone_windows(outcome, outcomes))
        for program, count in enumerate(outcome.case.copies)
        if count
    }
    each = [
        [
            waited / before.median
            for program, before in alone.items()
            if before is not None and before.median and (waited := _waited(window, program)) is not None
        ]
        for window in outcome.windows
    ]
    return [max(ratios) for ratios in each if ratios]


def _waited(window: WindowFigures, program: int) -> float | None:
    return (window.worst_p99_ms or window.p99_ms)[program]


def _rates(windows: Iterable[WindowFigures], program: int) -> Spread | None:
    return Spread.of_any([fsum(window.rates[program]) for window in windows if window.rates[program]])


def _of_slices(of_case: Sequence[CaseOutcome], outcomes: Sequence[CaseOutcome]) -> list[float]:
    """The ratios to the time slices of the same repeat, which ran next to it."""
    sliced = TrialCase(TrialMode.SLICES, of_case[0].case.copies)
    slices = {outcome.repeat: outcome for outcome in outcomes if outcome.case == sliced}
    return [
        gain / other
        for outcome in of_case
        if outcome.case.mode.under_mps and outcome.repeat in slices
        for alone in alone_rates(outcome, outcomes)
        for gain in work(outcome, alone)
        for other in work(slices[outcome.repeat], alone)
    ]


def _latency(values: Iterable[float | None]) -> Spread | None:
    return Spread.of_any([value for value in values if value is not None])


HEAD = (
    "copies",
    "how",
    "per second",
    "× alone",
    "× time slices",
    "each copy",
    "p50 ms",
    "p99 ms",
    "GPU busy",
    "MiB each",
)


def table_of(rows: Sequence[TrialRow], timed: bool) -> str:
    """Columns of text; without a figure of speed where the times are not those of a GPU."""
    return aligned([HEAD, *(cells_of(row, timed) for row in rows)], words=2)


def aligned(lines: Sequence[Sequence[str]], words: int) -> str:
    """Lines of cells as text in columns: the first `words` columns to the left, the others, figures, to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column < words else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def cells_of(row: TrialRow, timed: bool) -> tuple[str, ...]:
    """The cells below HEAD."""
    name = ("+".join(map(str, row.case.copies)), titled(row.case))
    memory = "–" if row.memory_mib is None else f"{row.memory_mib:,}"
    if not any(row.rates):
        return (*name, row.ending.value, *("–" for _ in range(7)))
    if not timed:
        return (*name, *("–" for _ in range(7)), memory)
    return (
        *name,
        " + ".join("–" if rate is None else _figure(rate.median) for rate in row.rates),
        "–" if row.gain is None else row.gain.text(),
        "–" if row.of_slices is None else row.of_slices.text(),
        "–" if row.speed is None else f"{row.speed.median:.0%}",
        _latencies(row.p50_ms),
        _latencies(row.p99_ms),
        "–" if row.busy_percent is None else f"{row.busy_percent.median:.0f} %",
        memory,
    )


def _figure(value: float) -> str:
    """Four digits at least, and never an exponent."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _latencies(spreads: Sequence[Spread | None]) -> str:
    return " + ".join("–" if spread is None else f"{spread.median:.3g}" for spread in spreads)
