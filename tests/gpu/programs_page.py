#!/usr/bin/env python3
"""docs/programs.md, from what `tests/gpu/compare.py` and the suite `programs` measured: docs/results/PRODUCT/
compare-PART.json and stack-programs.json.

python3 tests/gpu/programs_page.py > docs/programs.md
python3 tests/gpu/programs_page.py docs/results/h100/pictures/programs.png
"""

import json
import re
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from work_tree import ROOT

from gpushare.trial.cases import TITLES, CaseOutcome, TrialCase, TrialMode
from gpushare.trial.records import SCHEMA, TrialRecord
from gpushare.trial.rows import TrialRow, cells_of
from gpushare.trial.spread import Spread
from gpushare_workload.compare.result import Comparison, read
from tests.gpu.compare import PARTS, Part

RESULTS = ROOT / "docs/results"
HEAD = ("GPU", "copies", "how", "per second", "× alone", "× time slices", "p50 ms", "p99 ms", "GPU busy", "MiB each")
INTRODUCTION = """\
# Real programs, measured

Copies of programs that people run, beside each other on one GPU. On a bare machine processes ran alone, in time slices,
as clients of one MPS daemon, and in part as such clients with an equal part of the SMs each (*caps*), by
[`gpushare-workload compare`](compare.md) ([script](../tests/gpu/compare.py)). In a cluster they ran as
pods *in slots of a share*, each with 100 % of the threads, by [`kubectl gpushare trial`](compare.md#in-a-cluster)
([suite](../tests/gpu/stack/suites/programs.py)). The [programs](../workload/examples/frameworks/programs) have random
weights; the [glossary](glossary.md) has the words.

@GLANCE@
## How to read the tables
- Each case ran once, with two windows of 2 s; four copies of BERT also ran three times. Brackets hold the least and the
  largest of what the windows give. Runs differ by more than windows of one run.
- *per second* counts all copies together. *× alone* divides that by the rate of one copy alone: 4 copies that do not
  slow each other down reach 4. Of a pair, both quotients are added. *× time slices* divides by the same in time
  slices.
- For pods, *× alone* is against one alone in a slot, and *× time slices* against the bare machine's time slices. With
  an asterisk these are of another machine of the same kind. Pods that waited for their host are not divided by another
  machine's: those with the GPU busy for less than 90 % of the time.
- *GPU busy* is NVML's utilisation: the part of the time in which any kernel ran.
- A p99 is that of some hundred steps: small differences between two of them say nothing.

What can mislead:
- **A slow copy alone makes *× alone* too large.** The hosts are rented, and what waits for a core of the host varies:
  ResNet-50 training alone did 1,328 and 1,596 images/s in two windows of one run, and 1,122 as a pod on a second
  machine. A sentence below the table says so where *× alone* is 5 % above the number of copies. Below that it can be
  as wrong: eight pods of ResNet-50 inference are 5.92 times one pod, and 4.30 times one process on the same machine.
- **A program that waits for the host differs from run to run, in a pod or not.** On one H100 one BERT alone did 1,968
  to 3,845 texts/s as a process, and 1,698 to 3,308 as a pod. Four processes did 9,293 to 12,156 at first, four pods
  then 7,799 to 11,726, four pods that each request 2 CPUs 8,140 to 10,409, and four processes in the end 7,419 to
  9,669. Copies at the same time differed by up to 1.8 times. So the 7,723 texts/s of four pods, on an earlier machine
  on which four processes did 11,761, need not be a cost of pods.
- **GPT without graphs waits for the host most.** Its pods ran on a host where one alone did 10.9 tokens/s, and its
  processes on one where one alone did 15.1.
- **The only client of an MPS server can be slower than a process without MPS.** With a CUDA graph for each token, one
  GPT alone in a slot did 11 to 16 % less than one process: 650 and 730 tokens/s on one H200, 401 and 474 with 1.3
  billion parameters on two H100s. That makes *× alone* of pods larger. Two to eight pods of them differ from as many
  processes under MPS by 3 % at most.
- The H100s are seven machines. Three of them, on 26 November 2026, have all pods, and the processes with 2, 4, 7 and 8
  copies; each had one GPU and 16 cores. JAX with caps ran on a host with two GPUs, while MPS clients started and ended
  on the other one.
- The H200s are three. One of them has all pods, and the processes in files named after their copies but for
  YOLOS-small's. One has GPT 355 million, the pair, and 4 and 7 copies of YOLOS-small. On the third, a host with two
  GPUs, two programs ran at the same time: each on a GPU of its own, with 16 cores of its own.

This page is written by [tests/gpu/programs_page.py](../tests/gpu/programs_page.py) from the files that it links.
"""

PUBLISHED = {1: (0.0882, 0.0880), 3: (0.2931, 0.1640), 5: (0.4890, 0.2409), 7: (0.6849, 0.3198)}
"""By nos, of an A100: seconds of one YOLOS-small inference by the number of pods, in time slices and under MPS."""
NOS = """\
nos publishes [a table](https://github.com/nebuly-ai/nos/tree/main/demos/gpu-sharing-comparison) of the same model, in
pods on an A100. One inference takes 88 ms there and 10 ms here; the size of its image and its number format are not
stated. So this table only says how much longer an inference takes than alone, and it does not compare the two systems.
Ours are medians (p50) of the processes on the H100:
"""
ELSEWHERE = ("decode-medium", "resnet-train", "jax-train")
"""Their pods ran on another H100 than their processes."""
ASTERISK = "\\*"
BUSY_PERCENT = 90.0
"""Pods that keep their GPU busy for less of the time wait for their host: to divide what they do on one host by what
processes do on another says nothing.
"""
PODS = "stack-programs.json"
DPI = 130


def page(results: Path = RESULTS) -> str:
    """The whole page. Parts that nobody measured are left out."""
    sections = [INTRODUCTION.replace("@GLANCE@", "\n".join(_glance(results)))]
    for part in PARTS:
        if measured := _measured(part, results):
            sections.append(_section(part, measured, results))
    return "\n".join(sections)


def _measured(part: Part, folder: Path) -> dict[Path, Comparison]:
    """By file, in `folder` and those below it. A further file has what was measured on another day, such as
    compare-yolos-2-8.json.
    """
    names = ("", "-[0-9]*")
    files = sorted(file for name in names for file in folder.glob(f"**/compare-{part.name}{name}.json"))
    return {file: read(file.read_text()) for file in files}


def _section(part: Part, measured: dict[Path, Comparison], results: Path) -> str:
    title, unit = part.title.rsplit(": ", 1)
    lines = [f"## {title}", f"{unit.capitalize()} per second.", ""]
    lines += ["| " + " | ".join(HEAD) + " |", "| " + " | ".join(["---"] * len(HEAD)) + " |"]
    verdicts = []
    for folder in sorted({file.parent for file in measured}):
        here = {file: comparison for file, comparison in measured.items() if file.parent == folder}
        for file, comparison in here.items():
            lines += _rows(_product(comparison), file.relative_to(results), comparison.rows)
            verdicts.append(_verdict(comparison))
        for pods in _of_pods(part, folder):
            product = f"{folder.name.upper()}, {pods.title}"
            rows, elsewhere = _against_slices(pods, list(here.values()))
            lines += _rows(product, (folder / PODS).relative_to(results), rows, elsewhere)
            verdicts.append(f"- {product}: {pods.record.verdict.sentence}")
    lines += ["", *verdicts, ""]
    if part.name == "yolos":
        lines += _beside_nos(measured[results / "h100/compare-yolos.json"].rows)
    return "\n".join(lines)


def _beside_nos(rows: Sequence[TrialRow]) -> list[str]:
    """The one published table of the same program, as multiples of its time alone: the GPUs are not the same."""
    alone = _latency(next(row for row in rows if row.case.mode is TrialMode.ALONE))
    ours: dict[int, dict[TrialMode, str]] = {1: {TrialMode.SLICES: "1.00", TrialMode.MPS: "1.00"}}
    for row in rows:
        if row.case.mode in (TrialMode.SLICES, TrialMode.MPS):
            ours.setdefault(row.case.total, {})[row.case.mode] = f"{_latency(row) / alone:.2f}"
    lines = [
        NOS,
        "| copies | nos, time slices | nos, MPS | time slices | MPS |",
        "| --- | --- | --- | --- | --- |",
    ]
    for copies in sorted({*PUBLISHED, *ours}):
        slices, mps = PUBLISHED.get(copies, (None, None))
        nos = [f"{it / PUBLISHED[1][column]:.2f}" if it else "–" for column, it in enumerate((slices, mps))]
        own = [ours.get(copies, {}).get(mode, "–") for mode in (TrialMode.SLICES, TrialMode.MPS)]
        lines.append("| " + " | ".join([str(copies), *nos, *own]) + " |")
    return [*lines, ""]


def _latency(row: TrialRow) -> float:
    """p50 in ms. ValueError: it was not measured."""
    (found,) = row.p50_ms
    if found is None:
        raise ValueError(f"{row.case} has no latency")
    return found.median


def _rows(
    product: str, file: Path, rows: Sequence[TrialRow], elsewhere: Collection[TrialCase] = frozenset()
) -> list[str]:
    """`elsewhere`: whose time slices are those of another machine."""
    first = [f"[{product}](results/{file})", *[""] * (len(rows) - 1)]
    cells = [[gpu, *_cells(row)] for gpu, row in zip(first, rows, strict=True)]
    for row, line in zip(rows, cells, strict=True):
        line[5] += ASTERISK if row.case in elsewhere else ""
    return ["| " + " | ".join(line) + " |" for line in cells]


@dataclass(frozen=True)
class Gain:
    """What the most copies of a program that ran under MPS on the H100, without caps, do in multiples of time slices.

    `pods`: of as many pods of a share; None: not measured. `mark`: of pods that ran elsewhere. `busy`: NVML's
    utilisation in percent, of one copy of each program alone.
    """

    title: str
    busy: tuple[float, ...]
    copies: str
    processes: Spread
    pods: Spread | None
    mark: str


def gains(results: Path = RESULTS) -> list[Gain]:
    """Of each part that was measured; the largest first."""
    found = [gain for part in PARTS if (gain := _gain(part, results / "h100"))]
    return sorted(found, key=lambda gain: -gain.processes.median)


def _gain(part: Part, folder: Path) -> Gain | None:
    measured = _measured(part, folder).values()
    rows = [row for comparison in measured for row in comparison.rows]
    mps = [(row, row.of_slices) for row in rows if row.case.mode is TrialMode.MPS and row.of_slices]
    if not mps:
        return None
    most, processes = max(mps, key=lambda found: found[0].case.total)
    pods = next(iter(_of_pods(part, folder)), None)
    beside, elsewhere = _against_slices(pods, list(measured)) if pods else ([], set())
    row = next((row for row in beside if row.case.copies == most.case.copies and row.of_slices), None)
    alone = {row.case: row.busy_percent for row in rows if row.case.mode is TrialMode.ALONE}
    return Gain(
        title=part.title.rsplit(": ", 1)[0],
        busy=tuple(busy.median for busy in alone.values() if busy),
        copies="+".join(map(str, most.case.copies)),
        processes=processes,
        pods=row.of_slices if row else None,
        mark=ASTERISK if row and row.case in elsewhere else "",
    )


def _glance(results: Path) -> Iterator[str]:
    found = gains(results)
    most, least = found[0], found[-1]
    picture = f"Bars of the work in multiples of time slices, from {_bar(most)} to {_bar(least)}"
    yield "## At a glance"
    yield "On the H100, the most copies of each, without caps. What sharing under MPS does beyond time slices:"
    yield from ("", f"![{picture}](results/h100/pictures/programs.png)", "")
    yield "| program | one alone keeps the GPU busy | copies | MPS, × time slices | pods of a share, × time slices |"
    yield "| --- | --- | --- | --- | --- |"
    for gain in found:
        pods = f"{gain.pods.text()}{gain.mark}" if gain.pods else "–"
        busy = " + ".join(f"{percent:.0f} %" for percent in gain.busy)
        yield f"| {gain.title} | {busy} | {gain.copies} | {gain.processes.text()} | {pods} |"
    yield from ("", "NVML's utilisation, in the second column, does not tell who gains.", "")


def _bar(gain: Gain) -> str:
    return f"{gain.processes.median:.2f} ({gain.title})"


def draw(found: Sequence[Gain], picture: Path) -> None:
    """The gains as bars."""
    from matplotlib import rc_context  # the page does without it
    from matplotlib.figure import Figure

    from gpushare_workload.reporting.style import SETTINGS, SOFT, TEXT

    bars = (
        ("processes under MPS", -0.2, "#56b4e9", [gain.processes for gain in found]),
        ("pods of a share", 0.2, "#0072b2", [gain.pods for gain in found]),
    )
    with rc_context(dict(SETTINGS)):
        figure = Figure(figsize=(8.4, 5.2), layout="constrained")
        panel = figure.subplots()
        for name, offset, colour, spreads in bars:
            shown = [(place + offset, it.median) for place, it in enumerate(spreads) if it]
            panel.barh([at for at, _ in shown], [it for _, it in shown], height=0.38, color=colour, label=name)
            for at, figures in shown:
                panel.annotate(f"{figures:.2f}", (figures, at), xytext=(3, 0), textcoords="offset points",
                               va="center", fontsize=8, color=TEXT)  # fmt: skip
        panel.axvline(1.0, color=SOFT, linewidth=1.0, linestyle=(0, (4, 3)))
        panel.set_yticks(range(len(found)), [f"{gain.copies} × {gain.title}" for gain in found])
        panel.invert_yaxis()
        panel.margins(x=0.12)
        panel.set_xlim(left=0)
        panel.set_xlabel("work, × time slices (dashed)")
        panel.grid(visible=False, axis="y")
        panel.legend(loc="lower right")
        picture.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(picture, dpi=DPI, metadata={"Software": None})


@dataclass(frozen=True)
class PodTrial:
    """A trial of the suite `programs`. `gpu`: its UUID; empty in older trials."""

    name: str
    title: str
    gpu: str
    record: TrialRecord

    def ran_elsewhere(self, comparison: Comparison) -> bool:
        """Whether its GPU is another than that of the processes."""
        return self.gpu != comparison.environment["gpu"]["uuid"] if self.gpu else self.name in ELSEWHERE


def _of_pods(part: Part, folder: Path) -> Iterator[PodTrial]:
    """A further trial is called after its copies, such as bert-4. One of an early format is left out."""
    file = folder / PODS
    answers = json.loads(file.read_text())["programs"] if file.exists() else {}
    for name, answer in answers.items():
        if re.fullmatch(re.escape(part.name) + r"(-\d.*)?", name) and answer.get("schema") == SCHEMA:
            cpu = answer.get("cpu_of_a_pod")
            title = f"pods that request {cpu} CPUs" if cpu else "pods"
            yield PodTrial(name, title, answer.get("gpu", ""), TrialRecord.from_json(answer))


def _against_slices(pods: PodTrial, bare: Sequence[Comparison]) -> tuple[list[TrialRow], set[TrialCase]]:
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


def _verdict(comparison: Comparison) -> str:
    missing = " The run was ended early: rows that it did not reach are missing." if comparison.ended else ""
    return f"- {_product(comparison)}: {comparison.verdict.sentence}{missing}"


def _product(comparison: Comparison) -> str:
    return str(comparison.environment["gpu"]["product"]).removeprefix("NVIDIA ").split()[0]


def _cells(row: TrialRow) -> list[str]:
    cells = cells_of(row, timed=True)
    mode = "caps" if row.case.mode is TrialMode.CAPPED else TITLES[row.case.mode]
    return [cells[0], mode, *cells[2:5], *cells[6:]]


if __name__ == "__main__":
    if sys.argv[1:]:
        draw(gains(), Path(sys.argv[1]))
    else:
        print(page(), end="")
