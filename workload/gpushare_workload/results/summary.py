"""Runs as published figures: one row for each case, with its spread over the repeats. Pure.

Ratios are taken between runs of the same repeat, which ran next to each other, and summarised afterwards: a drift of
the machine between two repeats changes both sides alike.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpushare.kubectl.rules.trial.spread import Spread
from gpushare_workload.backend.work import Grid, Load, LoadKind
from gpushare_workload.gpus.monitor import SETTLED_SECONDS
from gpushare_workload.mps.modes import SharingMode
from gpushare_workload.results.document import PERCENTILES, Launch, Run
from gpushare_workload.results.histogram import Histogram


def jain(rates: Sequence[float]) -> float:
    """Jain's fairness index: 1 if all get the same, 1/n if one gets everything (DEC-TR-301, 1984).

    1 if all rates are 0. Raises ValueError without rates, or for a negative one.
    """
    if not rates:
        raise ValueError("fairness is between clients, and there is none")
    if min(rates) < 0:
        raise ValueError(f"a rate of {min(rates):g}")
    largest = max(rates)
    if largest == 0:
        return 1.0
    scaled = [rate / largest for rate in rates]  # squares of tiny rates would vanish
    index = sum(scaled) ** 2 / (len(scaled) * sum(rate * rate for rate in scaled))
    return min(1.0, max(1 / len(scaled), index))


@dataclass(frozen=True, slots=True, order=True)
class Case:
    """What is repeated. `threads` distinguishes the limits of one mode; None without MPS."""

    load: Load
    clients: int
    mode: SharingMode
    threads: float | None

    @property
    def label(self) -> str:
        """The mode, with its thread limit if that is not the usual one."""
        capped = self.threads is not None and self.threads != 100 and self.mode is not SharingMode.MPS_EQUAL_CAPS
        return f"{self.mode.value} at {self.threads:g} %" if capped else self.mode.value


@dataclass(frozen=True, slots=True)
class Row:
    """Rates in kernels per second, latencies in µs of one round with its wait, memory in MiB."""

    case: Case
    repeats: int
    total: Spread
    of_time_slicing: Spread | None
    """The total as a multiple of time-slicing with as many clients; None if that was not measured."""
    of_one_client: Spread | None
    """The total as a multiple of one client that has the GPU to itself, at the same depth; None if not measured."""
    launch: Launch
    fairness: Spread
    latency: Histogram
    """The latencies of all clients and repeats."""
    worst_p99_us: float
    """The largest p99 of any client in any repeat."""
    memory_mib: Spread | None
    """Memory of each client; None if NVML did not report it."""
    busy_percent: Spread | None
    """Use of the whole GPU; None if NVML did not report it, or of windows that are too short for its sample period."""
    warnings: tuple[str, ...]

    def percentile_us(self, percent: float) -> float:
        return self.latency.percentile(percent) / 1000

    @property
    def gflops(self) -> float:
        """Billions of floating-point operations per second, all clients together."""
        return self.total.median * self.launch.flops / 1e9

    @property
    def gigabytes_per_second(self) -> float:
        """Through device memory, or over the host link, all clients together."""
        return self.total.median * self.launch.bytes_moved / 1e9

    def as_json(self) -> dict[str, Any]:
        """Flat, for CSV and tables: one column for each figure."""
        case = self.case
        row: dict[str, Any] = {
            "kind": case.load.kind.value,
            "grid": case.load.grid.value,
            "depth": case.load.depth,
            "graph": case.load.graph,
            "clients": case.clients,
            "mode": case.mode.value,
            "threads_percent": case.threads,
            "repeats": self.repeats,
        }
        for name, spread in (
            ("kernels_per_second", self.total),
            ("of_time_slicing", self.of_time_slicing),
            ("of_one_client", self.of_one_client),
            ("fairness", self.fairness),
            ("memory_per_client_mib", self.memory_mib),
            ("gpu_busy_percent", self.busy_percent),
        ):
            for part in ("median", "least", "largest"):
                row[f"{name}_{part}"] = None if spread is None else round(getattr(spread, part), 4)
        row["gflops"] = round(self.gflops, 1)
        row["gigabytes_per_second"] = round(self.gigabytes_per_second, 2)
        for percent in PERCENTILES:
            row[f"p{percent:g}_us"] = round(self.percentile_us(percent), 2)
        return {**row, "worst_client_p99_us": round(self.worst_p99_us, 2), "warnings": "; ".join(self.warnings)}


def rows(runs: Iterable[Run]) -> list[Row]:
    """One row for each case, ordered by kind, grid, clients and mode. Refused and empty runs are left out."""
    by_case: dict[Case, dict[int, Run]] = {}
    for run in runs:
        if not run.refused and any(result.latency.count for result in run.results):
            by_case.setdefault(Case(run.load, run.clients, run.mode, run.threads), {})[run.repeat] = run
    return [_row(case, repeats, by_case) for case, repeats in sorted(by_case.items(), key=lambda item: _order(item[0]))]


def _order(case: Case) -> tuple[float, ...]:
    kinds, grids, modes = list(LoadKind), list(Grid), list(SharingMode)
    load = (kinds.index(case.load.kind), grids.index(case.load.grid), case.load.depth, int(case.load.graph))
    return (*load, case.clients, modes.index(case.mode), -(case.threads or 0.0))


def _row(case: Case, repeats: Mapping[int, Run], by_case: Mapping[Case, Mapping[int, Run]]) -> Row:
    runs = list(repeats.values())
    slicing = by_case.get(Case(case.load, case.clients, SharingMode.TIME_SLICING, None), {})
    memory = [sum(run.memory_mib.values()) / run.clients for run in runs if run.memory_mib]
    return Row(
        case=case,
        repeats=len(runs),
        total=Spread.of([run.total_rate for run in runs]),
        of_time_slicing=None if case.mode is SharingMode.TIME_SLICING else _ratio(repeats, slicing),
        of_one_client=_of_one_client(case, repeats, by_case),
        launch=runs[0].launch,
        fairness=Spread.of([jain(run.rates) for run in runs]),
        latency=Histogram.merged(result.latency for run in runs for result in run.results),
        worst_p99_us=max(_p99(run) for run in runs) / 1000,
        memory_mib=Spread.of_any(memory),
        busy_percent=Spread.of_any([busy for run in runs if (busy := _busy_percent(run)) is not None]),
        warnings=tuple(sorted({warning for run in runs for warning in run.warnings})),
    )


def _of_one_client(case: Case, repeats: Mapping[int, Run], by_case: Mapping[Case, Mapping[int, Run]]) -> Spread | None:
    """Against the whole GPU: one process without MPS, or where that cannot be measured one client without a cap."""
    for alone in (Case(case.load, 1, SharingMode.TIME_SLICING, None), Case(case.load, 1, SharingMode.MPS, 100.0)):
        if case == alone:
            return None
        if ratio := _ratio(repeats, by_case.get(alone, {})):
            return ratio
    return None


def _busy_percent(run: Run) -> float | None:
    """The use as read in the middle of the window; None if it may be in part of the time before the run."""
    return run.busy_percent if run.window / 2 >= SETTLED_SECONDS else None


def _p99(run: Run) -> float:
    return max(result.latency.percentile(99) for result in run.results if result.latency.count)


def _ratio(runs: Mapping[int, Run], others: Mapping[int, Run]) -> Spread | None:
    """The ratios of the totals, repeat by repeat; None if no repeat has both."""
    rates = [(run.total_rate, others[repeat].total_rate) for repeat, run in runs.items() if repeat in others]
    return Spread.of_any([rate / other for rate, other in rates if other])


def find(rows_: Sequence[Row], load: Load, clients: int, mode: SharingMode) -> Row | None:
    """The first row of that case with any thread limit."""
    matching = (row for row in rows_ if (row.case.load, row.case.clients, row.case.mode) == (load, clients, mode))
    return next(matching, None)
