#!/usr/bin/env python3
"""docs/programs.md, from what `tests/gpu/compare.py` measured: docs/results/PRODUCT/compare-PART.json.

python3 tests/gpu/programs_page.py > docs/programs.md
"""

from pathlib import Path

from work_tree import ROOT

from gpushare.trial.cases import TITLES, TrialMode
from gpushare.trial.rows import TrialRow, cells_of
from gpushare_workload.compare.result import Comparison, read
from tests.gpu.compare import PARTS, Part

RESULTS = ROOT / "docs/results"
HEAD = ("GPU", "copies", "how", "per second", "× alone", "× time slices", "p50 ms", "p99 ms", "GPU busy", "MiB each")
INTRODUCTION = """\
# Real programs, measured

What [`gpushare-workload compare`](compare.md) measured of programs that people run, by
[tests/gpu/compare.py](../tests/gpu/compare.py). Processes ran on a bare machine in four ways: one alone, several in
time slices, several as clients of one MPS daemon, and the same with an equal part of the SMs for each (*caps*). The
[programs](../workload/examples/frameworks/programs) have random weights.

- Each case ran once, with two windows of 2 s. Brackets hold the least and the largest of what the windows give.
- *per second* counts all copies together. *× alone* divides that by the rate of one copy alone: 4 copies that do not
  slow each other down reach 4. Of a pair, both quotients are added. *× time slices* divides by the same in time slices.
- *GPU busy* is NVML's utilisation: the part of the time in which any kernel ran.
- On the H100, ResNet-50 training, JAX, k-means and YOLOS-small ran on one GPU of a host with 32 cores while another
  program was measured on its second GPU. That may have slowed the host's part of a step, of a copy alone too.
- On the H100, 2 and 8 copies of five programs were measured on such a host, too, on 16 cores of their own, while
  programs that only attach were timed on the other GPU.
- On the H200, all but GPT 355 million, the pair, and 4 and 7 copies of YOLOS-small were measured on a host with two
  GPUs, two programs at the same time: each on a GPU of its own, with 16 cores of its own.
- More than 4 from 4 copies, or more than 2 from 2, is no gain of sharing. Such programs wait for one core of the host,
  and the copy that was measured alone had a slow moment (BERT and GPT 1.3 billion on the H200, the crops on the H100,
  ResNet-50 and BERT beside their 2 and 8 copies). *× time slices* has no such fault.
- A p99 is that of some hundred steps: small differences between two of them say nothing.

This page is written by [tests/gpu/programs_page.py](../tests/gpu/programs_page.py) from the files that it links.
"""


def page(results: Path = RESULTS) -> str:
    """The whole page. Parts that nobody measured are left out."""
    sections = [INTRODUCTION]
    for part in PARTS:
        # A further file has the numbers of copies that were measured on another day: compare-yolos-2-8.json.
        files = sorted(file for names in ("", "-[0-9]*") for file in results.glob(f"*/compare-{part.name}{names}.json"))
        if files:
            sections.append(_section(part, {file: read(file.read_text()) for file in files}, results))
    return "\n".join(sections)


def _section(part: Part, measured: dict[Path, Comparison], results: Path) -> str:
    title, unit = part.title.rsplit(": ", 1)
    lines = [f"## {title}", f"{unit.capitalize()} per second.", ""]
    lines += ["| " + " | ".join(HEAD) + " |", "| " + " | ".join(["---"] * len(HEAD)) + " |"]
    for file, comparison in measured.items():
        gpu = f"[{_product(comparison)}](results/{file.relative_to(results)})"
        for row in comparison.rows:
            lines.append("| " + " | ".join([gpu, *_cells(row)]) + " |")
            gpu = ""
    lines += ["", *(_verdict(comparison) for comparison in measured.values()), ""]
    return "\n".join(lines)


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
    print(page(), end="")
