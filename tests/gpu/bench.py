#!/usr/bin/env python3
"""The benchmark on a real GPU within nine minutes: costs and gains of sharing, and the figures of the README.

    PYTHONPATH=operator:workload python3 tests/gpu/bench.py OUT

Needs a GPU that nobody uses, CuPy, nvidia-ml-py and nvidia-cuda-mps-control on PATH; no root, no matplotlib. Writes one
JSON and one CSV file for each part into OUT/parts, and OUT/expected.json; `gpushare-workload report OUT/parts/*.json
--html …` makes the report, here or elsewhere. Exit code 0 if all figures were reached.

What it takes: a pass starts fresh clients, about 4.5 s; a run is a window of 0.5 s, 0.15 s of warm-up, 0.2 s between.

    matrix     3 modes × 5 numbers of clients = 15 passes, 3 runs each      15 × (4.5 + 3 × 0.85)     ≈ 106 s
    memory     mps at 100, 25, 12 and 5 %, 8 clients, 1 run each             4 × (4.5 + 0.85)          ≈  21 s
    others     time-slicing, streams, graphs, 8 clients, 3 runs, 2 repeats   6 × (4.5 + 3 × 0.85)      ≈  42 s
    kinds      time-slicing, mps, memory and transfer, 8 clients, 2 repeats  4 × (4.5 + 6 × 3.5)       ≈ 102 s
    matrix     again, and a third time                                       2 × 106                   ≈ 212 s
                                                                                                 total ≈ 483 s

The most important parts run first. A part that would exceed the budget is left out, with a message.
"""

import argparse
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpushare_workload.backend.work import Grid, LoadKind
from gpushare_workload.bench.plan import Load, SharingMode
from gpushare_workload.bench.results.document import Run
from gpushare_workload.bench.results.summary import find, rows
from gpushare_workload.reporting.files import read

BUDGET_SECONDS = 530.0
CLAIMS = {Grid.SMALL: 20.0, Grid.HALF: 12.0, Grid.SATURATING: 1.6}
"""Least throughput of 8 clients under MPS, as a multiple of time-slicing."""
CLAIMED_CLIENTS = 8
END_SECONDS = 30.0
SHORT = ("--seconds", "0.5", "--warmup", "0.15")


@dataclass(frozen=True, slots=True)
class Part:
    """One call of the benchmark; `seconds`: its expected duration."""

    name: str
    seconds: float
    options: tuple[str, ...]


def matrix(number: int) -> Part:
    modes = ("--modes", "time-slicing", "mps", "mps-equal-caps", "--clients", "1", "2", "4", "8", "16")
    return Part(
        f"matrix-{number}", 106, (*modes, "--kinds", "compute", "--repeats", "1", "--seed", str(number), *SHORT)
    )


def memory(percent: int) -> Part:
    mode = ("--modes", "mps", "--threads", str(percent), "--clients", "8", "--kinds", "compute", "--grids", "small")
    return Part(f"memory-{percent}", 5.4, (*mode, "--repeats", "1", *SHORT))


PARTS = (
    matrix(1),
    *(memory(percent) for percent in (100, 25, 12, 5)),
    Part(
        "others",
        42,
        (
            "--modes",
            "time-slicing",
            "streams",
            "graphs",
            "--clients",
            "8",
            "--kinds",
            "compute",
            "--repeats",
            "2",
            *SHORT,
        ),
    ),
    Part(
        "kinds",
        102,
        ("--modes", "time-slicing", "mps", "--clients", "8", "--kinds", "memory", "transfer", "--repeats", "2", *SHORT),
    ),
    matrix(2),
    matrix(3),
)


def measure(part: Part, out: Path, seconds: float) -> str:
    """Returns how the part ended, in a word or two. After SIGTERM the benchmark cleans up."""
    command = [sys.executable, "-m", "gpushare_workload.cli", "bench", "--own-daemon", *part.options]
    files = ["--json", str(out / f"{part.name}.json"), "--csv", str(out / f"{part.name}.csv")]
    with (out / f"{part.name}.log").open("w") as log:
        process = subprocess.Popen([*command, *files], stdout=subprocess.DEVNULL, stderr=log)
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.terminate()
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            return f"took longer than {seconds:.0f} s"
    return "ok" if code == 0 else f"exit code {code}: {(out / f'{part.name}.log').read_text()[-400:]}"


def claims(runs: list[Run]) -> dict[str, Any]:
    """Each claim with its measurement, and whether it holds."""
    found = {}
    table = rows(runs)
    for grid, least in CLAIMS.items():
        row = find(table, Load(LoadKind.COMPUTE, grid), CLAIMED_CLIENTS, SharingMode.MPS)
        ratio = row.of_time_slicing if row else None
        measured = ratio.as_json() if ratio else None
        found[grid.value] = {"at_least": least, "measured": measured, "holds": bool(ratio and ratio.median >= least)}
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--budget", type=float, default=BUDGET_SECONDS, metavar="SECONDS")
    arguments = parser.parse_args()
    parts = arguments.out / "parts"
    parts.mkdir(parents=True, exist_ok=True)
    end, ended = time.monotonic() + arguments.budget, {}
    took = expected = 1.0
    for part in PARTS:
        began = time.monotonic()
        if end - began < part.seconds * max(1.0, took / expected):
            ended[part.name] = "left out: no time"
        else:
            ended[part.name] = measure(part, parts, end - began)
            took, expected = took + time.monotonic() - began, expected + part.seconds
        print(f"{part.name}: {ended[part.name]} ({time.monotonic() - began:.0f} s)", flush=True)
    files = sorted(parts.glob("matrix-*.json"))
    result = {"claims": claims(list(read(files).runs)) if files else {}, "parts": ended}
    (arguments.out / "expected.json").write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))
    return 0 if result["claims"] and all(one["holds"] for one in result["claims"].values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
