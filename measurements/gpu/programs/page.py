"""measurements/pages/programs.md, from what `measurements/gpu/programs/compare.py` and the suite `programs` measured:
measurements/results/PRODUCT/compare-PART.json and stack-programs.json.

python3 -m measurements.gpu.programs.page > measurements/pages/programs.md
python3 -m measurements.gpu.programs.page measurements/results/pictures/programs.png
"""

import statistics
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import permutations
from pathlib import Path
from string import Template

from gpushare.kubectl.rules.trial.cases import TrialCase, TrialMode
from gpushare.kubectl.rules.trial.rows import HEAD, TrialRow, cells_of
from gpushare.kubectl.rules.trial.spread import Spread
from measurements.gpu import ROOT
from measurements.gpu.programs.compare import PARTS, Part
from measurements.gpu.programs.figures import (
    ASTERISK,
    BUSY_PERCENT,
    FULL_PERCENT,
    PRODUCTS,
    Gain,
    Pair,
    gains,
    gpu_of,
    is_busy,
    machine,
    measured,
    pairs,
    pod_trials,
    under_mps,
)
from tests.page_tables import head_of, line_of

RESULTS = ROOT / "measurements/results"
INTRODUCTION = """\
# Real programs, in tables

Copies of programs that people run, beside each other on one GPU; what follows from it, with each copy's speed and p99,
is told in [Does it pay?](../../docs/does-it-pay.md). On a bare machine processes ran alone, in time slices, as clients
of one MPS daemon, and in part as such clients with an equal part of the SMs each (*caps*), by
[`gpushare-workload compare`](../../docs/compare.md) ([script](../gpu/programs/compare.py)). In a cluster they ran as
pods *in slots of a share*, each with 100 % of the threads, by
[`kubectl gpushare trial`](../../docs/compare.md#in-a-cluster) ([suite](../gpu/stack/suites/speed/programs.py)). The
[programs](../../workload/examples/frameworks/programs) have random weights; the
[glossary](../../docs/glossary.md) has the words.

![Work of several copies under MPS, as processes and as pods, in multiples of their work in time slices, by program and
GPU](../results/pictures/programs.png)

Eight copies, or as many as stand there, under MPS without caps, divided by as many in time slices. One alone had kept
the GPU busy for 97 % of the time with YOLOS-small, 30 % with ResNet-50, 4 % with a GPT without CUDA graphs: NVML's
utilisation does not tell who gains. What does is whether kernels of different programs fit beside each other, and
whether the program waits for its host. The latter vary [from run to run](#what-can-mislead), in a pod or
not.

Latency follows: of eight YOLOS-small on an H200 the median inference takes 10.1 ms alone, 83.7 ms in time slices and
12.4 ms under MPS ([table](#latency)). [Caps](#with-caps) help some programs and cost others.

$GLANCE
## How to read the tables
- Each case ran once, with two windows of 2 s, unless a table says how many *runs* there were. Brackets hold the least
  and the largest of what the windows give. Runs differ by more than windows of one run, and machines by more still: of
  $BRACKETS brackets of *× time slices* from one run of copies that kept the GPU busy, $INSIDE held what another machine
  gave.
- *× alone* divides the work of all copies together by that of one copy alone: 4 copies that do not slow each other down
  reach 4. Of a pair, both quotients are added. *× time slices* divides by the same in time slices. For pods, *× alone*
  is against one pod alone in a slot, and *× time slices* against processes in time slices.
- After the product are the first four digits of the GPU's UUID: the same digits are the same machine.
- An asterisk: those time slices ran on another machine. Pods that kept the GPU busy for less than 90 % of the time are
  only divided by time slices of their own machine, since they waited for their host.
- *busy* is NVML's utilisation: the part of the time in which any kernel ran.
- A p99 is that of all steps in a window, which are 20 to 5,000. Small differences between two of them say nothing.

## What can mislead
- **A slow copy alone makes *× alone* too large.** The hosts are rented, and how long a program waits for a CPU core
  varies. It can be too large where no sentence says so: see ResNet-50 inference in the table of
  [one alone](#what-a-pod-costs), and divide by the faster one.
- **A program that waits for its host differs from run to run, in a pod or not.** Four BERTs in three runs each, in the
  order in which they ran on a GPU:

$BERTS

  Eight processes that prepare images:

$PREPARED

  So these runs do not tell whether MPS helps either program or harms it.
- **Hosts differ in cores.** H200 824d is one of two GPUs of a host with 32 cores. All others had 16 cores for each
  GPU. Of [stack-programs.json](../results/h200/stack-programs.json), `environment` is that of the last run alone.
- **Other programs ran on seven hosts**, which no file says. MPS clients started and ended on the GPU beside H100 434e.
  Of the others, each GPU had 16 of its host's cores to itself, and each ran programs at the same time as the others of
  its host: H200 cc59 and dc8b; 02bb, 7834, 9523 and ed52; 774c and e94c; a2ad and add5. On the other GPUs of the
  hosts of H200 8ae2 and 356b ran programs whose results are not here.

## Beside nos
$NOS

## Every comparison
Each file has all its cases: rates, latencies, memory, utilisation and the verdict, window by window. Those of pods are
in stack-programs.json ([H100](../results/h100/stack-programs.json),
[H200](../results/h200/stack-programs.json)).

$FILES

## How to repeat it
Processes, in the root of the work tree, on a machine with a GPU that nobody uses, nvidia-ml-py, PyTorch, torchvision,
transformers, JAX, and MPS on PATH. A line takes two to four minutes. Without `--parts` all programs run:

```sh
python3 -m measurements.gpu.programs.compare out/yolos --parts yolos --copies 8 --repeats 3 --modes time-slicing mps
python3 -m measurements.gpu.programs.compare out/pair --parts yolos-beside-resnet-train --repeats 3
```

Pods: the suite `programs` of [`measurements/gpu/run`](../README.md#the-stack-on-a-machine-with-a-gpu). Your own
program: [compare.md](../../docs/compare.md).

This page is written by [measurements/gpu/programs/page.py](../gpu/programs/page.py) from the files that it links.
"""

PUBLISHED = {1: (0.0882, 0.0880), 3: (0.2931, 0.1640), 5: (0.4890, 0.2409), 7: (0.6849, 0.3198)}
"""What nos measured on an A100: seconds of a YOLOS-small inference by pods, in time slices and under MPS."""
NOS = """\
nos publishes [a table](https://github.com/nebuly-ai/nos/tree/main/demos/gpu-sharing-comparison) of the same model, in
pods on an A100. One inference takes 88 ms there and 10 ms here. Its program computes in float32, ours in float16. Its
figures are means of calls that do not wait for the GPU, ours are medians (p50) of steps that do. So this table only
says how much longer an inference takes than alone, and it does not compare the two systems. Ours are the processes on
the H100:
"""
DPI = 130
YOLOS = "h100/compare-yolos.json"
WAITED_FOR = ("yolos", "decode-medium", "decode-1.3b", "resnet-infer", "bert")
OF_THESE = ("processes", "× alone, verdict", "pods")


def page(results: Path = RESULTS) -> str:
    """The whole page. KeyError, ValueError: something that it speaks of was not measured."""
    inside = list(_held_elsewhere(results))
    return Template(INTRODUCTION).substitute(
        GLANCE=_glance(results),
        BERTS="\n".join(_berts(results)),
        PREPARED="\n".join(_prepared(results)),
        BRACKETS=len(inside),
        INSIDE=sum(inside) or "none",
        NOS="\n".join(_beside_nos(measured(_part("yolos"), results / "h100")[results / YOLOS].rows)),
        FILES="\n".join(_files(results)),
    )


def _files(results: Path) -> Iterator[str]:
    """Each program's comparisons, by the machines on which they ran."""
    yield from head_of("program", "unit per second", *(product.upper() for product in PRODUCTS))
    for part in PARTS:
        folders = [results / product for product in PRODUCTS]
        cells = [
            [
                _linked(machine(folder, gpu_of(comparison)), file, results)
                for file, comparison in measured(part, folder).items()
            ]
            for folder in folders
        ]
        if any(cells):
            yield line_of(part.title, part.unit, *(", ".join(links) or "–" for links in cells))


def _linked(gpu: str, file: Path, results: Path) -> str:
    return f"[{gpu}](../results/{file.relative_to(results)})"


def _compared(part: Part, results: Path) -> Iterator[tuple[str, Mapping[TrialCase, TrialRow]]]:
    """The cases of each comparison of a program, below the link to its file."""
    for folder in (results / product for product in PRODUCTS):
        for file, comparison in measured(part, folder).items():
            yield (
                _linked(machine(folder, gpu_of(comparison)), file, results),
                {row.case: row for row in comparison.rows},
            )


def _caps(results: Path) -> Iterator[str]:
    """Lines with the most copies of each program and product that ran with caps and without."""
    yield from head_of("program", "GPU", "copies", "under MPS, × time slices", "with equal caps")
    for part in PARTS:
        best = dict[str, tuple[int, str]]()
        for link, rows in _compared(part, results):
            for case, row in rows.items():
                free = rows.get(TrialCase(TrialMode.MPS, case.copies))
                if case.mode is TrialMode.CAPPED and row.of_slices and free and free.of_slices:
                    copies = "+".join(map(str, case.copies))
                    line = line_of(part.title, link, copies, free.of_slices.text(), row.of_slices.text())
                    product = link[1:5]
                    if case.total > best.get(product, (0, ""))[0]:
                        best[product] = case.total, line
        yield from (line for _, line in best.values())


def _latencies(results: Path) -> Iterator[str]:
    """Lines with p50 and p99 of WAITED_FOR, of the most copies in the most runs on each product."""
    yield from head_of("program", "GPU", "copies", "alone: p50, p99 ms", "time slices", "MPS")
    for part in map(_part, WAITED_FOR):
        best = dict[str, tuple[tuple[int, int], str]]()
        for link, rows in _compared(part, results):
            alone = next((row for case, row in rows.items() if case.mode is TrialMode.ALONE), None)
            for case, row in rows.items():
                slices = rows.get(TrialCase(TrialMode.SLICES, case.copies))
                if case.mode is TrialMode.MPS and alone and slices:
                    cells = (_percentiles(timed) for timed in (alone, slices, row))
                    line = line_of(part.title, link, str(case.total), *cells)
                    product, rank = link[1:5], (row.runs, case.total)
                    if rank > best.get(product, ((0, 0), ""))[0]:
                        best[product] = rank, line
        yield from (line for _, line in best.values())


def _percentiles(row: TrialRow) -> str:
    cells = cells_of(row, timed=True)
    return ", ".join(cells[HEAD.index(name)] for name in ("p50 ms", "p99 ms"))


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
        nos = [
            f"{seconds / PUBLISHED[1][column]:.2f}" if seconds else "–" for column, seconds in enumerate((slices, mps))
        ]
        own = [ours.get(copies, {}).get(mode, "–") for mode in (TrialMode.SLICES, TrialMode.MPS)]
        lines.append(line_of(str(copies), *nos, *own))
    return lines


def _latency(row: TrialRow) -> float:
    """The p50 in ms. ValueError: it was not measured."""
    (p50,) = row.p50_ms
    if p50 is None:
        raise ValueError(f"{row.case} has no latency")
    return p50.median


GLANCE = """\
## At a glance
The work of several copies under MPS, without caps, as a multiple of their work in time slices. Shown are processes
with two or three runs, where there are any; of these, the most copies that also ran as pods. *3 + 3* runs are those of
two hosts, with the mean of their medians and the extremes of both.

$TABLES
*processes*: under a bare MPS daemon, in so many *runs*. *× alone*: the work of these processes, as a multiple of one
alone, and the verdict on so many copies [by the rule](../../docs/compare.md#what-it-says) of `compare`, by machine
where they differ; –: that one was slow in some windows, or its windows differ by more than a quarter. *pods*: in slots
of a share, in one run; with an asterisk, on another machine than the processes. –: no pods ran with as many copies, or
they waited for their host and have no time slices of their machine.

NVML's utilisation, in the second column, does not tell who gains. Where programs wait for their host, a difference
between the products is one between hosts.

Of all cases with copies of one program, those in which they kept the GPU busy under MPS, without caps, for at least
$LEAST_BUSY % of the time did $BUSY times the work of time slices, most of them in one run; those of two or
three runs, all of $REPEATED_COPIES processes, did $REPEATED. The others, which wait for their host, did
$WAITING, and vary [from run to run](#what-can-mislead). That sorts by what came out: how busy a GPU will
be under MPS, nobody knows before.

## With caps
The most copies of each program that ran with an equal part of the SMs each, beside as many without. Some did less with
caps, such as YOLOS and ResNet-50, and some more, such as a training step in JAX:

$CAPS

## Latency
Of the programs that somebody waits for, the most copies in the most runs:

$LATENCIES

## What a pod costs
Pods in slots of a share, by what as many processes did on the same machine. Several processes are clients of a bare MPS
daemon.

| several copies | cases | least | median | most |
| --- | --- | --- | --- | --- |
$SEVERAL

| one alone | GPU | process, per second | pod | |
| --- | --- | --- | --- | --- |
$ALONE

- Where several copies keep the GPU busy, pods did as processes do, with the few differences above.
- One pod in a slot can be slower than a process without MPS: a GPT with graphs waits for nothing but the GPU, and did
  11 and 15 % less, in one run each. That makes *× alone* of pods larger. Whether MPS or the pod costs that was not
  measured; YOLOS and k-means lost nothing.
- Programs that wait for their host vary [from run to run](#what-can-mislead). For them, these runs do not tell what is
  the pod's, what MPS's, and what the host's.
"""


def _glance(results: Path) -> str:
    columns = list(zip(*([gain, *others] for gain, others in _beside(results)), strict=True))
    both = list(pairs(results))
    shared = [row for row in under_mps(results) if len(row.case.copies) == 1]
    repeated = [row for row in shared if is_busy(row) and row.runs > 1]
    return Template(GLANCE).substitute(
        TABLES="\n".join(_of_a_product(product, of_it) for product, of_it in zip(PRODUCTS, columns, strict=True)),
        LEAST_BUSY=f"{BUSY_PERCENT:.0f}",
        BUSY=_span(row for row in shared if is_busy(row)),
        REPEATED=_span(repeated),
        REPEATED_COPIES=_or(sorted({row.case.total for row in repeated})),
        WAITING=_span(row for row in shared if not is_busy(row)),
        CAPS="\n".join(_caps(results)),
        LATENCIES="\n".join(_latencies(results)),
        SEVERAL="\n".join(_several(both)),
        ALONE="\n".join(_alone(both)),
    )


def _or(numbers: Sequence[int]) -> str:
    """A list in words, of at least two numbers."""
    *most, last = map(str, numbers)
    return f"{', '.join(most)} or {last}"


def _span(rows: Iterable[TrialRow]) -> str:
    """The least and the largest quotient to time slices."""
    medians = [row.of_slices.median for row in rows if row.of_slices]
    return f"{min(medians):.2f} to {max(medians):.2f}"


def _of_a_product(product: str, gains: Sequence[Gain | None]) -> str:
    lines = list(head_of("program", "one alone: busy", f"{product.upper()}: copies (runs)", *OF_THESE))
    for gain in gains:
        if gain:
            busy = " + ".join(f"{percent:.0f} %" for percent in gain.busy)
            copies = f"{gain.copies} ({' + '.join(map(str, gain.runs))})"
            alone = gain.alone.text() if gain.alone else "–"
            judged = ": ".join((alone, *([" / ".join(gain.verdict)] if gain.verdict else [])))
            lines.append(line_of(gain.title, busy, copies, gain.processes.text(), judged, _of_pods(gain)))
    return "\n".join([*lines, ""])


def _beside(results: Path) -> list[tuple[Gain, list[Gain | None]]]:
    """The gain of each program of the first product there, and on the others. None: it was not measured there."""
    first, *others = ({gain.title: gain for gain in gains(results / product)} for product in PRODUCTS)
    return [(gain, [other.get(title) for other in others]) for title, gain in first.items()]


def _once(gain: Gain) -> str:
    return ", 1 run" if gain.runs == (1,) else ""


def _of_pods(gain: Gain) -> str:
    return gain.pods.text() + (ASTERISK if gain.elsewhere else "") if gain.pods else "–"


def _several(both: Sequence[Pair]) -> Iterator[str]:
    busy = f"which kept the GPU busy for at least {FULL_PERCENT:.0f} % of the time, both times"
    for name, full in ((busy, True), ("others", False)):
        quotients = [pair.quotient for pair in both if pair.copies > 1 and pair.full is full]
        figures = (_percent(quotient) for quotient in (min(quotients), statistics.median(quotients), max(quotients)))
        yield line_of(name, str(len(quotients)), *figures)


def _alone(both: Sequence[Pair]) -> Iterator[str]:
    for pair in (pair for pair in both if pair.copies == 1):
        rates = (cells_of(row, timed=True)[HEAD.index("per second")] for row in (pair.processes, pair.pods))
        yield line_of(pair.title, pair.gpu, *rates, _percent(pair.quotient))


def _percent(quotient: float) -> str:
    return f"{100 * quotient:.0f} %"


BERTS = (
    *(("h100", name) for name in ("compare-bert-4-first", "bert-4", "bert-4-cpu", "compare-bert-4-second")),
    *(("h200", name) for name in ("bert-4", "bert-4-cpu")),
)
"""Stored comparisons and trials of four BERTs with three runs, in their order."""


def _berts(results: Path) -> Iterator[str]:
    part = _part("bert")
    yield line_of("GPU", "four BERTs", "texts per second, least, median and most of six windows")
    yield line_of("---", "---", "---")
    for product, name in BERTS:
        folder = results / product
        ran = {
            file.stem: (gpu_of(trial), "processes under MPS", trial.rows)
            for file, trial in measured(part, folder).items()
        } | {trial.name: (trial.gpu, trial.title, trial.record.rows) for trial in pod_trials(part, folder)}
        gpu, how, rows = ran[name]
        rate = _rate(next(row for row in rows if row.case.copies == (4,)))
        spread = f"{rate.least:,.0f}, {rate.median:,.0f}, {rate.largest:,.0f}"
        yield line_of(machine(folder, gpu), how, spread)


def _prepared(results: Path) -> Iterator[str]:
    """What eight copies of `preprocess` did in time slices and under MPS."""
    part = _part("preprocess")
    yield from head_of("GPU", "runs", "images per second in time slices", "under MPS")
    for folder in (results / product for product in PRODUCTS):
        for file, comparison in measured(part, folder).items():
            rows = {row.case.mode: row for row in comparison.rows if row.case.copies == (8,)}
            if len(rows) > 1:
                slices, mps = (f"{_rate(rows[mode]).median:,.0f}" for mode in (TrialMode.SLICES, TrialMode.MPS))
                gpu = _linked(machine(folder, gpu_of(comparison)), file, results)
                yield line_of(gpu, str(rows[TrialMode.MPS].runs), slices, mps)


def _held_elsewhere(results: Path) -> Iterator[bool]:
    """Tells of each quotient to time slices of a run whether its extremes include the median of another machine."""
    for part, folder in ((part, results / product) for part in PARTS for product in PRODUCTS):
        quotients = [
            (gpu_of(comparison), row, row.of_slices)
            for comparison in measured(part, folder).values()
            for row in comparison.rows
            if row.case.mode is TrialMode.MPS and len(row.case.copies) == 1 and row.of_slices and is_busy(row)
        ]
        for (gpu, row, spread), (other_gpu, other, elsewhere) in permutations(quotients, 2):
            if row.runs == 1 and gpu != other_gpu and row.case == other.case:
                yield spread.least <= elsewhere.median <= spread.largest


def _part(name: str) -> Part:
    return next(part for part in PARTS if part.name == name)


def _rate(row: TrialRow) -> Spread:
    """The rate of copies of one program. ValueError: it was not measured."""
    [rate] = row.rates
    if rate is None:
        raise ValueError(f"{row.case} has no rate")
    return rate


def draw(results: Path, picture: Path) -> None:
    """The gains as bars, with the least and the largest, a panel for each product."""
    from matplotlib import rc_context  # the page does without it
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    from gpushare_workload.reporting.style import SETTINGS, SOFT, TEXT

    beside = _beside(results)
    with rc_context(dict(SETTINGS)):
        figure = Figure(figsize=(10.4, 5.6), layout="constrained")
        panels = figure.subplots(1, len(PRODUCTS), sharey=True, sharex=True)
        columns = list(zip(*([gain, *others] for gain, others in beside), strict=True))
        for panel, product, gains in zip(panels, PRODUCTS, columns, strict=True):
            for place, gain in enumerate(gains):
                if gain is None:
                    continue
                bars = [
                    (gain.processes, "#56b4e9", f"  ({gain.copies} copies{_once(gain)})"),
                    (gain.pods, "#0072b2", ""),
                ]
                shown = [bar for bar in bars if bar[0]]
                for row, (spread, colour, note) in enumerate(shown):
                    at = place + 0.4 * (row - (len(shown) - 1) / 2)
                    beyond = [[spread.median - spread.least], [spread.largest - spread.median]]
                    panel.barh(
                        at,
                        spread.median,
                        height=0.38,
                        color=colour,
                        xerr=beyond,
                        error_kw={"elinewidth": 1.0, "ecolor": SOFT, "capsize": 1.5},
                    )
                    panel.annotate(f"{spread.median:.2f}{note}", (spread.largest, at), xytext=(4, 0),
                                   textcoords="offset points", va="center", fontsize=8, color=TEXT,
                                   bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.4})  # fmt: skip
            panel.axvline(1.0, color=SOFT, linewidth=1.0, linestyle=(0, (4, 3)))
            panel.set_yticks(range(len(beside)), [gain.title for gain, _ in beside])
            panel.set_title(product.upper())
            panel.set_xlabel("work, × time slices (dashed)")
            panel.grid(visible=False, axis="y")
        panels[0].invert_yaxis()
        panels[0].set_xlim(0, 1.3 * max(gain.processes.median for gains in columns for gain in gains if gain))
        names = (("processes under MPS", "#56b4e9"), ("pods of a share", "#0072b2"))
        handles = [Patch(color=colour, label=name) for name, colour in names]
        figure.legend(handles=handles, loc="outside lower right", ncols=2, fontsize=8)
        picture.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(picture, dpi=DPI, metadata={"Software": None})


if __name__ == "__main__":
    if sys.argv[1:]:
        draw(RESULTS, Path(sys.argv[1]))
    else:
        print(page(), end="")
