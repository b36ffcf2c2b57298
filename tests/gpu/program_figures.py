"""The figures of docs/programs.md, from docs/results/PRODUCT/compare-PART.json and stack-programs.json: processes on a
bare machine beside pods of a share.
"""

import json
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpushare.trial.cases import TITLES, CaseOutcome, TrialCase, TrialMode
from gpushare.trial.records import SCHEMA, TrialRecord
from gpushare.trial.rows import TrialRow, cells_of
from gpushare.trial.spread import Spread
from gpushare_workload.compare.result import Comparison, read
from tests.gpu.compare import PARTS, Part

PRODUCTS = ("h100", "h200")
PODS = "stack-programs.json"
ASTERISK = "\\*"
BUSY_PERCENT = 90.0
"""Pods that keep their GPU busy for less of the time wait for their host: to divide what they do on one host by what
processes do on another says nothing.
"""
FULL_PERCENT = 99.0
"""A GPU that is busy for as much of the time had no lack of work."""
GPU_OF_OLD_TRIALS = {
    **dict.fromkeys(("yolos", "resnet-infer"), "GPU-5bee7452-fd18-0c0d-b5b0-69f00a88b396"),
    **dict.fromkeys(
        ("decode-medium", "resnet-train", "bert", "jax-train", "kmeans"), "GPU-9ed18469-65a2-3b49-6a0f-5c4eb4ec9452"
    ),
}
"""By name, of the H100 trials of 26 November 2026, 18:22 to 18:58: the suite did not yet store its GPU's UUID. On each
of these machines processes ran just before, and theirs is stored.
"""


def measured(part: Part, folder: Path) -> dict[Path, Comparison]:
    """By file, in `folder` and those below it. A further file has what was measured on another day, such as
    compare-yolos-2-8.json.
    """
    names = ("", "-[0-9]*")
    files = sorted(file for name in names for file in folder.glob(f"**/compare-{part.name}{name}.json"))
    return {file: read(file.read_text()) for file in files}


@dataclass(frozen=True)
class PodTrial:
    """A trial of the suite `programs`. `gpu`: its UUID."""

    name: str
    title: str
    gpu: str
    record: TrialRecord

    def ran_elsewhere(self, comparison: Comparison) -> bool:
        """Whether its GPU is another than that of the processes."""
        return bool(self.gpu != comparison.environment["gpu"]["uuid"])


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
            gpu = answer.get("gpu") or GPU_OF_OLD_TRIALS[name]
            yield PodTrial(name, title, gpu, TrialRecord.from_json(answer))


def against_slices(pods: PodTrial, bare: Sequence[Comparison]) -> tuple[list[TrialRow], set[TrialCase]]:
    """The rows of pods, with their quotients to time slices on a bare machine; and whose are of another machine. A
    comparison on the same machine goes first.
    """
    rows, elsewhere = [], set()
    for row in pods.record.rows:
        busy = row.busy_percent is not None and row.busy_percent.median >= BUSY_PERCENT
        for comparison in sorted(bare, key=pods.ran_elsewhere):
            if pods.ran_elsewhere(comparison) and not busy:
                continue
            if quotient := _quotient(row, pods.record.outcomes, comparison.outcomes):
                row = replace(row, of_slices=quotient)
                elsewhere |= {row.case} if pods.ran_elsewhere(comparison) else set()
                break
        rows.append(row)
    return rows, elsewhere


def _quotient(row: TrialRow, pods: Sequence[CaseOutcome], bare: Sequence[CaseOutcome]) -> Spread | None:
    mine = [window for one in pods if one.case == row.case for window in one.windows]
    case = TrialCase(TrialMode.SLICES, row.case.copies)
    slices = [window for one in bare if one.case == case for window in one.windows]
    return Spread.of_any([sum(window.rates[0]) / sum(other.rates[0]) for window in mine for other in slices])


def lines_of(first: str, rows: Sequence[TrialRow], elsewhere: Collection[TrialCase] = frozenset()) -> list[str]:
    """Of the page's table. `first`: the first cell of the first. `elsewhere`: whose time slices are those of another
    machine.
    """
    lines = list[str]()
    for row in rows:
        copies, _, rate, gain, of_slices, _, *others = cells_of(row, timed=True)
        mode = "caps" if row.case.mode is TrialMode.CAPPED else TITLES[row.case.mode]
        of_slices += ASTERISK if row.case in elsewhere else ""
        cells = ("" if lines else first, copies, mode, rate, gain, of_slices, *others)
        lines.append("| " + " | ".join(cells) + " |")
    return lines


@dataclass(frozen=True)
class Gain:
    """What copies of a program did under MPS, without caps, in multiples of time slices: the most that ran as pods too,
    else the most.

    `pods`: of as many pods of a share; None: not measured, or not to be divided. `mark`: of pods that ran elsewhere.
    `busy`: NVML's utilisation in percent, of one copy of each program alone, in the same run as the processes.
    """

    title: str
    busy: tuple[float, ...]
    copies: str
    processes: Spread
    pods: Spread | None
    mark: str


def gains(folder: Path) -> list[Gain]:
    """On one product, of each part that was measured there; the largest first."""
    found = [gain for part in PARTS if (gain := _gain(part, folder))]
    return sorted(found, key=lambda gain: -gain.processes.median)


def _gain(part: Part, folder: Path) -> Gain | None:
    bare = list(measured(part, folder).values())
    pods = next((trial for trial in pod_trials(part, folder) if trial.name == part.name), None)
    beside, elsewhere = against_slices(pods, bare) if pods else ([], set())
    of_pods = {row.case.copies: row for row in beside if row.of_slices}
    found = [
        (row, row.of_slices, comparison)
        for comparison in bare
        for row in comparison.rows
        if row.case.mode is TrialMode.MPS and row.of_slices
    ]
    if not found:
        return None
    most, processes, comparison = max(found, key=lambda it: (it[0].case.copies in of_pods, it[0].case.total))
    row = of_pods.get(most.case.copies)
    alone = [one.busy_percent for one in comparison.rows if one.case.mode is TrialMode.ALONE]
    return Gain(
        title=part.title.rsplit(": ", 1)[0],
        busy=tuple(busy.median for busy in alone if busy),
        copies="+".join(map(str, most.case.copies)),
        processes=processes,
        pods=row.of_slices if row else None,
        mark=ASTERISK if row and row.case in elsewhere else "",
    )


@dataclass
class OfProcesses:
    """What several pods did, by what as many processes under a bare MPS daemon did on the same machine. `full`: of
    copies that kept the GPU busy both times; `waited`: of others.
    """

    full: list[float] = field(default_factory=list)
    waited: list[float] = field(default_factory=list)


def of_processes(results: Path) -> OfProcesses:
    """Of all programs, on all products."""
    found = OfProcesses()
    for folder, part in ((results / product, part) for product in PRODUCTS for part in PARTS):
        for pods in pod_trials(part, folder):
            here = [it for it in measured(part, folder).values() if not pods.ran_elsewhere(it)]
            for processes in (row for it in here for row in it.rows if row.case.mode is TrialMode.MPS):
                for row in (row for row in pods.record.rows if row.case.copies == processes.case.copies):
                    [mine], [others] = row.rates, processes.rates
                    if mine and others:
                        quotients = found.full if _keeps_full(row) and _keeps_full(processes) else found.waited
                        quotients.append(mine.median / others.median)
    return found


def _keeps_full(row: TrialRow) -> bool:
    return row.busy_percent is not None and row.busy_percent.median >= FULL_PERCENT


def machine(product: str, uuid: str) -> str:
    """Such as `H100 9ed1`, after its GPU."""
    return f"{product} {uuid.removeprefix('GPU-')[:4]}"


@dataclass
class Ran:
    """What one machine ran: of each program, the numbers of copies beside each other."""

    processes: dict[str, list[str]] = field(default_factory=dict)
    pods: dict[str, list[str]] = field(default_factory=dict)


def machines(results: Path) -> dict[str, Ran]:
    """By machine, those of one product after those of the other."""
    found = dict[str, Ran]()
    for folder in (results / product for product in PRODUCTS):
        for part in PARTS:
            for comparison in measured(part, folder).values():
                ran = found.setdefault(machine(folder.name.upper(), comparison.environment["gpu"]["uuid"]), Ran())
                _note(ran.processes.setdefault(part.name, []), comparison.rows)
            for pods in pod_trials(part, folder):
                ran = found.setdefault(machine(folder.name.upper(), pods.gpu), Ran())
                _note(ran.pods.setdefault(pods.name, []), pods.record.rows)
    return found


def _note(copies: list[str], rows: Sequence[TrialRow]) -> None:
    new = ("+".join(map(str, row.case.copies)) for row in rows if row.case.mode is not TrialMode.ALONE)
    copies.extend(it for it in dict.fromkeys(new) if it not in copies)
