"""The figures of measurements/pages/programs.md: processes on a bare machine beside pods of a share.

They come from measurements/results/PRODUCT/compare-PART.json and stack-programs.json.
"""

import json
import re
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpushare.kubectl.rules.trial.cases import CaseOutcome, TrialCase, TrialMode
from gpushare.kubectl.rules.trial.decision import judge
from gpushare.kubectl.rules.trial.records import SCHEMA, TrialRecord
from gpushare.kubectl.rules.trial.rows import TrialRow
from gpushare.kubectl.rules.trial.spread import Spread
from gpushare.kubectl.rules.trial.verdict import answer_of, is_above, slow_alone
from gpushare_workload.results.comparison import Comparison, read
from measurements.gpu.programs.compare import PARTS, Part

PRODUCTS = ("h100", "h200")
PODS = "stack-programs.json"
ASTERISK = "\\*"
BUSY_PERCENT = 90.0
"""Pods that keep their GPU busy for less of the time wait for their host: to divide what they do on one host by what
processes do on another says nothing.
"""
STEADY = 1.25
"""What one copy alone does in its fastest window, at most, as a multiple of its slowest."""
FULL_PERCENT = 99.0
"""A GPU that is busy for as much of the time had no lack of work."""
GPU_OF_OLD_TRIALS = {
    **{("h100", name): "GPU-5bee7452-fd18-0c0d-b5b0-69f00a88b396" for name in ("yolos", "resnet-infer")},
    **{
        ("h100", name): "GPU-9ed18469-65a2-3b49-6a0f-5c4eb4ec9452"
        for name in ("decode-medium", "resnet-train", "bert", "jax-train", "kmeans")
    },
}
"""GPUs by product and name, of the trials of 26 November 2026, 18:22 to 18:58: the suite stored no UUID of its GPU yet.
On each of these machines processes ran just before, and theirs is stored.
"""


def _everywhere(results: Path) -> Iterator[tuple[Path, Part]]:
    """Each program on each product, by the folder of the product's results."""
    return ((results / product, part) for product in PRODUCTS for part in PARTS)


def measured(part: Part, folder: Path) -> dict[Path, Comparison]:
    """Comparisons by file, on the product of `folder`. A further file has what was measured on another day, such as
    compare-yolos-2-8.json.
    """
    names = ("", "-[0-9]*")
    files = sorted(file for name in names for file in folder.glob(f"compare-{part.name}{name}.json"))
    return {file: read(file.read_text()) for file in files}


@dataclass(frozen=True)
class PodTrial:
    """A trial of the suite `programs`. `gpu`: its UUID."""

    name: str
    title: str
    gpu: str
    record: TrialRecord

    def ran_elsewhere(self, comparison: Comparison) -> bool:
        """Tells whether its GPU is another than that of the processes."""
        return self.gpu != gpu_of(comparison)


def pod_trials(part: Part, folder: Path) -> Iterator[PodTrial]:
    """A further trial is called after its copies, such as bert-4. One of an early format is left out.

    KeyError: nobody knows on which GPU a trial ran.
    """
    file = folder / PODS
    answers = json.loads(file.read_text())["programs"] if file.exists() else {}
    for name, answer in answers.items():
        if re.fullmatch(re.escape(part.name) + r"(-\d.*)?", name) and answer.get("schema") == SCHEMA:
            cpu = answer.get("cpu_of_a_pod")
            title = f"pods that request {cpu} CPUs" if cpu else "pods"
            gpu = answer.get("gpu") or GPU_OF_OLD_TRIALS[folder.name, name]
            yield PodTrial(name, title, gpu, TrialRecord.from_json(answer))


def own_trial(part: Part, folder: Path) -> PodTrial | None:
    """The trial of all copies of a part."""
    return next((trial for trial in pod_trials(part, folder) if trial.name == part.name), None)


def against_slices(pods: PodTrial, bare: Sequence[Comparison]) -> tuple[list[TrialRow], set[TrialCase]]:
    """The rows of pods, with their quotients to time slices on a bare machine; and whose are of another machine. A
    comparison on the same machine goes first.
    """
    rows, elsewhere = [], set()
    for row in pods.record.rows:
        busy = is_busy(row)
        for comparison in sorted(bare, key=pods.ran_elsewhere):
            if pods.ran_elsewhere(comparison) and not busy:
                continue
            if quotient := _quotient(row, pods.record.outcomes, comparison.record.outcomes):
                row = replace(row, of_slices=quotient)
                elsewhere |= {row.case} if pods.ran_elsewhere(comparison) else set()
                break
        rows.append(row)
    return rows, elsewhere


def is_busy(row: TrialRow) -> bool:
    """Tells whether its copies kept the GPU busy: they did not wait for their host."""
    return row.busy_percent is not None and row.busy_percent.median >= BUSY_PERCENT


def under_mps(results: Path) -> Iterator[TrialRow]:
    """Rows of processes and pods under MPS without caps, on all products, that have time slices beside them."""
    for folder, part in _everywhere(results):
        bare, pods = list(measured(part, folder).values()), own_trial(part, folder)
        rows = [row for comparison in bare for row in comparison.rows if row.case.mode is TrialMode.MPS]
        rows += against_slices(pods, bare)[0] if pods else []
        yield from (row for row in rows if row.of_slices)


def _quotient(row: TrialRow, pods: Sequence[CaseOutcome], bare: Sequence[CaseOutcome]) -> Spread | None:
    mine = [window for outcome in pods if outcome.case == row.case for window in outcome.windows]
    case = TrialCase(TrialMode.SLICES, row.case.copies)
    slices = [window for outcome in bare if outcome.case == case for window in outcome.windows]
    return Spread.of_any([sum(window.rates[0]) / sum(other.rates[0]) for window in mine for other in slices])


@dataclass(frozen=True)
class Gain:
    """What copies of a program did under MPS, without caps, in multiples of time slices: of processes that ran in
    several runs, else in one; of these the most that also ran as pods on the same machine, else on another, else the
    most. If several machines had as many processes in several runs: the median of theirs, and the extremes of all.

    `runs`: of the processes, on each machine. `alone`: their work in multiples of one alone; None: that one was slow in
    some windows. `verdict`: on these copies, by machine, as `compare` gives it; empty: none. `pods`: of as
    many pods of a share; None: not measured, or not to be divided. `elsewhere`: pods and processes ran on two machines.
    `busy`: NVML's utilisation in percent, of one copy of each program alone, in the runs of the processes.
    """

    title: str
    busy: tuple[float, ...]
    copies: str
    runs: tuple[int, ...]
    processes: Spread
    alone: Spread | None
    verdict: tuple[str, ...]
    pods: Spread | None
    elsewhere: bool


def gains(folder: Path) -> list[Gain]:
    """The gain of each part that was measured on one product; the largest first."""
    all_gains = [gain for part in PARTS if (gain := _gain(part, folder))]
    return sorted(all_gains, key=lambda gain: -gain.processes.median)


def _gain(part: Part, folder: Path) -> Gain | None:
    bare = list(measured(part, folder).values())
    pods = own_trial(part, folder)
    rows = against_slices(pods, bare)[0] if pods else []
    of_pods = {row.case.copies: row.of_slices for row in rows if row.of_slices}

    def elsewhere(row: TrialRow, comparison: Comparison) -> bool:
        return bool(pods and row.case.copies in of_pods and pods.ran_elsewhere(comparison))

    candidates = [
        (row, row.of_slices, comparison)
        for comparison in bare
        for row in comparison.rows
        if row.case.mode is TrialMode.MPS and row.of_slices
    ]
    if not candidates:
        return None
    row, _, comparison = max(
        candidates,
        key=lambda tried: (
            tried[0].runs > 1, tried[0].case.copies in of_pods, not elsewhere(tried[0], tried[2]), tried[0].case.total
        ),
    )  # fmt: skip
    alike = [
        tried for tried in candidates if tried[0].case == row.case and (tried[0].runs > 1 or tried[2] is comparison)
    ]
    busy = [entry.busy_percent for entry in comparison.rows if entry.case.mode is TrialMode.ALONE]
    alone = [steady_gain(entry, whole) for entry, _, whole in alike]
    return Gain(
        title=part.title,
        busy=tuple(percent.median for percent in busy if percent),
        copies="+".join(map(str, row.case.copies)),
        runs=tuple(entry.runs for entry, _, _ in alike),
        processes=_of_all([spread for _, spread, _ in alike]),
        alone=None if None in alone else _of_all([spread for spread in alone if spread]),
        verdict=() if None in alone else tuple(dict.fromkeys(_verdict(entry) for entry, _, _ in alike)),
        pods=of_pods.get(row.case.copies),
        elsewhere=all(elsewhere(entry, whole) for entry, _, whole in alike),
    )


def _verdict(row: TrialRow) -> str:
    judgement = judge(row)
    return "–" if judgement is None else answer_of(judgement).value


def _of_all(machines: Sequence[Spread]) -> Spread:
    medians = (spread.median for spread in machines)
    return Spread(
        statistics.median(medians), min(spread.least for spread in machines), max(spread.largest for spread in machines)
    )


def steady_gain(row: TrialRow, comparison: Comparison) -> Spread | None:
    """What the copies of `row` did in multiples of one alone; None: that one was slow in some windows."""
    slow = slow_alone(comparison.rows) or is_above(row) or _varies_alone(comparison.rows)
    return None if slow else row.gain


def _varies_alone(rows: Sequence[TrialRow]) -> bool:
    """Tells whether one copy alone was slow in some windows: a quotient to it says more of them than of sharing."""
    rates = [rate for row in rows if row.case.mode is TrialMode.ALONE for rate in row.rates if rate is not None]
    return any(rate.largest > STEADY * rate.least for rate in rates)


@dataclass(frozen=True)
class Pair:
    """A program in as many pods of a share as processes, on one machine: without MPS where it is one process, else
    under a bare MPS daemon.
    """

    title: str
    gpu: str
    processes: TrialRow
    pods: TrialRow

    @property
    def copies(self) -> int:
        return self.pods.case.total

    @property
    def quotient(self) -> float:
        [mine], [theirs] = self.pods.rates, self.processes.rates
        if mine is None or theirs is None:
            raise ValueError(f"{self.title}: {self.copies} copies have no rate")
        return mine.median / theirs.median

    @property
    def full(self) -> bool:
        """They kept the GPU busy both times."""
        return all(
            copies.busy_percent and copies.busy_percent.median >= FULL_PERCENT for copies in (self.pods, self.processes)
        )


def pairs(results: Path) -> Iterator[Pair]:
    """The pairs of all programs, on all products."""
    for folder, part in _everywhere(results):
        trial = own_trial(part, folder)
        for comparison in measured(part, folder).values():
            if trial is None or trial.ran_elsewhere(comparison):
                continue
            pods = {row.case.copies: row for row in trial.record.rows if any(row.rates)}
            for row in (row for row in comparison.rows if any(row.rates)):
                if row.case.mode in (TrialMode.ALONE, TrialMode.MPS) and row.case.copies in pods:
                    yield Pair(part.title, machine(folder, trial.gpu), row, pods[row.case.copies])


def machine(product: Path, uuid: str) -> str:
    """A name such as `H100 9ed1`, after its GPU. `product`: the folder of its results."""
    return f"{product.name.upper()} {uuid.removeprefix('GPU-')[:4]}"


def gpu_of(comparison: Comparison) -> str:
    """The UUID of its GPU."""
    return str(comparison.record.environment["gpu"]["uuid"])
