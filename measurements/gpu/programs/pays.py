"""The tables of docs/does-it-pay.md, from measurements/results/PRODUCT/compare-PART.json.

    python3 -m measurements.gpu.programs.pays [PAGE]

A cell holds what the machines say: the least and the largest of their medians, how many GPUs, and runs on each. Where
nobody measured, it says so.
"""

import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpushare.kubectl.rules.trial.cases import MORE, TrialCase, TrialMode
from gpushare.kubectl.rules.trial.decision import LONGEST_P99
from measurements.gpu import ROOT
from measurements.gpu.programs.compare import PARTS
from measurements.gpu.programs.figures import PRODUCTS, gpu_of, measured, steady_gain
from tests.page_tables import filled, head_of, line_of

PAGE, RESULTS = ROOT / "docs/does-it-pay.md", ROOT / "measurements/results"
NOT_MEASURED, VARIED = "not measured", "one alone varied"
GPUS = 8


@dataclass(frozen=True, slots=True)
class ProgramClass:
    """A row. `part`: of `measurements.gpu.programs.compare`. `waited_for`: somebody waits for each step, so its p99
    decides how many copies share; else the work alone does. `batched`: the part of one process that batches the same
    work.
    """

    title: str
    part: str
    waited_for: bool = False
    batched: str = ""


CLASSES = (
    ProgramClass("Detection, eager: YOLOS-small, 1 image", "yolos", waited_for=True, batched="batched-yolos"),
    ProgramClass("Embedding, a graph: BERT-base, 1 text", "bert-graph", waited_for=True, batched="batched-bert"),
    ProgramClass("Embedding, eager: BERT-base, 16 texts", "bert", waited_for=True, batched="batched-bert"),
    ProgramClass(
        "Vision in batches: ResNet-50, 8 images", "resnet-infer", waited_for=True, batched="batched-resnet-infer"
    ),
    ProgramClass("Decoding, a graph: GPT, 355 million", "decode-medium", waited_for=True),
    ProgramClass("Decoding, a graph: GPT, 1.3 billion", "decode-1.3b", waited_for=True),
    ProgramClass("Training: ResNet-50, batch 32", "resnet-train"),
    ProgramClass("Training: GPT, 355 million", "gpt-train"),
    ProgramClass("k-means, 500,000 points", "kmeans"),
    ProgramClass("A training step in JAX", "jax-train"),
    ProgramClass("Image preparation, half on the CPU", "preprocess"),
)
"""Ten classes, chosen by kind; embedding has a second row for what was measured first."""


@dataclass(frozen=True, slots=True)
class HostFigures:
    """What so many copies under MPS, without caps, did on one host. None where it cannot be said.

    `gain`: their work in multiples of one alone; `slices`: of as many in time slices; `slowest`: the speed of the
    slowest copy as a part of one alone; `p99`: of the copy that waits longest, where the file has it, else of all
    copies together, in multiples of one alone; `rate`: of all copies together, per second.
    """

    copies: int
    host: str
    runs: int
    gain: float | None
    slices: float | None
    slowest: float | None
    p99: float | None
    rate: float = 0.0


def host_figures(part: str, results: Path = RESULTS) -> list[HostFigures]:
    """The cases of a program on all hosts, from its comparisons."""
    [known] = [tried for tried in PARTS if tried.name == part]
    return [
        HostFigures(
            row.case.total,
            gpu_of(comparison),
            row.runs,
            steady.median if (steady := steady_gain(row, comparison)) else None,
            row.of_slices.median if row.of_slices else None,
            row.slowest.median if steady and row.slowest else None,
            row.p99_times.median if steady and row.p99_times else None,
            row.rates[0].median if row.rates[0] else 0.0,
        )
        for product in PRODUCTS
        for comparison in measured(known, results / product).values()
        for row in comparison.rows
        if row.case.mode is TrialMode.MPS and len(row.case.copies) == 1
    ]


def batched_rates(part: str, results: Path = RESULTS) -> dict[str, float]:
    """The rate per second of one process that batches, by the UUID of its GPU; empty where nobody measured it."""
    return {
        gpu_of(comparison): row.rates[0].median
        for known in PARTS
        if known.name == part
        for product in PRODUCTS
        for comparison in measured(known, results / product).values()
        for row in comparison.rows
        if row.case.mode is TrialMode.ALONE and row.rates[0]
    }


def copies_that_share(figures: Sequence[HostFigures], waited_for: bool) -> int:
    """How many copies share a GPU. Where somebody waits: the most, up to which the p99 on every host is at most
    LONGEST_P99 times that of one alone. Else the fewest that come within MORE of the most work. 1 where none do.
    """
    by_copies: dict[int, list[HostFigures]] = {}
    for host in sorted(figures, key=lambda host: host.copies):
        if host.gain is not None:
            by_copies.setdefault(host.copies, []).append(host)
    if not waited_for:
        works = {copies: min(host.gain or 0.0 for host in hosts) for copies, hosts in by_copies.items()}
        best = max(works.values(), default=0.0)
        return min((copies for copies, work in works.items() if work * MORE >= best), default=1)
    most = 1
    for copies, hosts in by_copies.items():
        if any(host.p99 is None or host.p99 > LONGEST_P99 for host in hosts):
            break
        most = copies
    return most


def saved(divisor: float) -> int:
    """Of GPUS, how many are free where one takes the load of `divisor`."""
    return GPUS - math.ceil(GPUS / divisor)


def _cell(hosts: Sequence[HostFigures], values: Sequence[float], form: str = ".1f") -> str:
    runs = sorted({host.runs for host in hosts})
    told = "1 run" if runs == [1] else f"{'–'.join(map(str, dict.fromkeys((runs[0], runs[-1]))))} runs"
    count = len({host.host for host in hosts})
    return f"{_span(values, form)} ({count} GPU{'s' if count > 1 else ''}, {told})"


def _of(figures: Sequence[HostFigures], *copies: int) -> list[HostFigures]:
    return [host for host in figures if host.copies in copies]


def _gain_cell(hosts: Sequence[HostFigures], value: str) -> str:
    if not hosts:
        return NOT_MEASURED
    known = [(host, figure) for host in hosts if (figure := getattr(host, value)) is not None]
    if not known:
        return VARIED
    return _cell([host for host, _ in known], [figure for _, figure in known])


def batched_cell(hosts: Sequence[HostFigures], batched: Mapping[str, float]) -> str:
    """The work of copies in multiples of one process that batches, on the GPUs that ran both."""
    both = [host for host in hosts if host.host in batched]
    return _cell(both, [host.rate / batched[host.host] for host in both]) if both else NOT_MEASURED


def work_table(results: Path = RESULTS) -> str:
    """What four, and seven or eight copies do, against one alone, time slices, and one process that batches."""
    lines = list(
        head_of(
            "program", "4 copies, × one alone", "7 or 8, × one alone", "7 or 8, × time slices",
            "× one process that batches",
        )
    )  # fmt: skip
    for row in CLASSES:
        figures = host_figures(row.part, results)
        most = _of(figures, 7, 8)
        cells = (_gain_cell(_of(figures, 4), "gain"), _gain_cell(most, "gain"), _gain_cell(most, "slices"))
        lines.append(line_of(row.title, *cells, batched_cell(most, batched_rates(row.batched, results))))
    return "\n".join(lines)


def saved_table(results: Path = RESULTS) -> str:
    """How many copies share, what the slowest of them keeps, and the GPUs that this frees."""
    lines = list(
        head_of(
            "program", "copies on a GPU", "slowest copy keeps", "p99, × alone", "GPUs saved of 8: part load",
            "full load",
        )
    )  # fmt: skip
    for row in CLASSES:
        figures = host_figures(row.part, results)
        copies = copies_that_share(figures, row.waited_for)
        hosts = [host for host in _of(figures, copies) if host.gain is not None]
        if not hosts:
            lines.append(line_of(row.title, *[NOT_MEASURED if not figures else "1"], *["–"] * 4))
            continue
        slowest = f"{_span([100 * host.slowest for host in hosts if host.slowest], '.0f')} %"
        p99 = _span([host.p99 for host in hosts if host.p99], ".1f") if row.waited_for else "–"
        part = str(saved(copies)) if row.waited_for else "–"
        full = str(saved(min(host.gain for host in hosts if host.gain)))
        lines.append(line_of(row.title, str(copies), slowest, p99, part, full))
    return "\n".join(lines)


def _span(values: Sequence[float], form: str) -> str:
    """The least and the largest; one figure where they read the same."""
    return "–".join(dict.fromkeys(format(value, form) for value in (min(values), max(values))))


def fairness(part: str, copies: int, mode: TrialMode, results: Path = RESULTS) -> list[float]:
    """What the slowest copy did, in parts of the fastest, in the median window of each machine; from the least."""
    [known] = [tried for tried in PARTS if tried.name == part]
    case = TrialCase(mode, (copies,))
    medians = []
    for folder in (results / product for product in PRODUCTS):
        for comparison in measured(known, folder).values():
            outcomes = (outcome for outcome in comparison.record.outcomes if outcome.case == case)
            parts = [min(window.rates[0]) / max(window.rates[0]) for outcome in outcomes for window in outcome.windows]
            medians += [statistics.median(parts)] if parts else []
    return sorted(medians)


def losses(results: Path = RESULTS) -> str:
    """The cases that did less under MPS than in time slices in the median, as items of a list."""
    lines = []
    for part in PARTS:
        if part.beside:
            continue
        lost = [host for host in host_figures(part.name, results) if host.slices is not None and host.slices < 0.95]
        lines += [
            f"- {host.copies} × {part.title}: {host.slices:.2f} ({host.runs} run{'s' if host.runs > 1 else ''})"
            for host in sorted(lost, key=lambda host: host.copies)
        ]
    return "\n".join(lines)


def main(page: Path = PAGE) -> None:
    text = filled(page.read_text(), {"work": work_table(), "saved": saved_table(), "losses": losses()})
    page.write_text(text)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
