"""What sharing a GPU costs and gains, on a real GPU within ten minutes, for measurements/pages/kernels.md.

    python3 -m measurements.gpu.workload.bench OUT

Needs a GPU that nobody uses, CuPy, nvidia-ml-py and nvidia-cuda-mps-control on PATH; no root, no matplotlib. Writes one
file for each part into OUT/parts, and OUT/expected.json; `gpushare-workload report OUT/parts/*.json* --html …` makes
the report, here or elsewhere. Exit code 0 if all figures were as expected.

    depth      time slices and MPS, 1 and 8 clients, depths 1, 4, 16 and 64, and graphs of 16: three times
    overlap    kernels of 2 and 4 processes at once by the GPU's own clock, in time slices and under MPS, with caps
    mix        pairs of programs in time slices, and under MPS at 100, 50 and 25 % each
    caps       2 and 8 clients under MPS with all SMs, and with an equal part of them each
    memory     programs that stream device memory, 1 and 8 clients, depths 1 and 16: three times
    scale      2, 4 and 16 clients, depths 1 and 16: three times

The most important parts run first. A part that would exceed the budget is left out, with a message. With the simulated
driver's GPUSHARE_SIMULATION_DIR and executables it runs without a GPU, and figures are not checked; `--quick` shortens
every part, to rehearse all of this.
"""

import argparse
import json
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpushare_workload.backend.work import Grid, Load, LoadKind
from gpushare_workload.mps.modes import SharingMode
from gpushare_workload.results.files import Collected, read
from gpushare_workload.results.summary import find, rows
from measurements.gpu.environment import environment_block
from measurements.gpu.private_mps import Events, PrivateMps, without_mps

BUDGET_SECONDS = 570.0
CLIENTS = 8
GAINS = {
    (Grid.SMALL, 1): 10.0, (Grid.SMALL, 16): 4.0, (Grid.SMALL, 64): 3.0,
    (Grid.HALF, 1): 6.0, (Grid.HALF, 16): 1.5, (Grid.HALF, 64): 1.3,
    (Grid.SATURATING, 1): 1.3, (Grid.SATURATING, 16): 1.0, (Grid.SATURATING, 64): 1.0,
}  # fmt: skip
"""Least throughput of 8 clients under MPS, as a multiple of time slices, by grid and depth."""
ONE_AT_ONCE, SEVERAL_AT_ONCE = 1.05, 1.3
"""Processes with a kernel on the GPU at the same moment: at most in time slices, at least under MPS."""
END_SECONDS = 30.0
LOOP = ("--seconds", "0.3", "--warmup", "0.1")
QUICK_LOOP = ("--seconds", "0.05", "--warmup", "0.1", "--repeats", "1", "--grids", "small", "--clients", "1", "2")
QUICK_RUN = ("--duration", "0.3", "--repeats", "1", "--grid", "small")
"""Long enough that all processes run at the same moment on a busy machine: overlap wants records of all."""


@dataclass(frozen=True, slots=True)
class Part:
    """One program; `seconds`: its expected duration. `run(out, quick, limit)` returns how it ended, in some words."""

    name: str
    seconds: float
    run: Callable[[Path, bool, float], str]


def bench(name: str, seconds: float, *options: str) -> Part:
    """One call of the benchmark. After SIGTERM it cleans up."""

    def run(out: Path, quick: bool, limit: float) -> str:
        command = [sys.executable, "-m", "gpushare_workload.cli", "bench", "--own-daemon", *options, *LOOP]
        files = ["--json", str(out / f"{name}.json"), "--csv", str(out / f"{name}.csv")]
        with (out / f"{name}.log").open("w") as log:
            process = subprocess.Popen(
                [*command, *(QUICK_LOOP if quick else ()), *files], stdout=subprocess.DEVNULL, stderr=log
            )
            try:
                code = process.wait(limit)
            except subprocess.TimeoutExpired:
                process.terminate()
                try:
                    process.wait(END_SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
                return f"took longer than {limit:.0f} s"
        return "ok" if code == 0 else f"exit code {code}: {(out / f'{name}.log').read_text()[-400:]}"

    return Part(name, seconds, run)


def scenario(name: str, seconds: float, mps: bool, *arguments: str) -> Part:
    """One scenario, in time slices or under a private MPS daemon; its output becomes the file."""

    def run(out: Path, quick: bool, limit: float) -> str:
        given = (*arguments, *(QUICK_RUN if quick else ()))
        if mps:
            with tempfile.TemporaryDirectory() as directory, PrivateMps(Path(directory), threads=100) as daemon:
                outcome = daemon.start(*given, environment=daemon.environment).end(limit)
        else:
            outcome = without_mps(*given).end(limit)
        (out / f"{name}.jsonl").write_text("".join(json.dumps(event) + "\n" for event in outcome["events"]))
        return "ok" if outcome["exit_code"] == 0 else f"exit code {outcome['exit_code']}: {outcome['events'][-1:]}"

    return Part(name, seconds, run)


def depth(number: int) -> Part:
    modes = ("--modes", "time-slicing", "mps", "--clients", "1", str(CLIENTS), "--kinds", "compute")
    depths = ("--depths", "1", "4", "16", "64", "--graphs")
    return bench(f"depth-{number}", 60, *modes, *depths, "--repeats", "1", "--seed", str(number))


def overlap(name: str, mps: bool, *options: str) -> Part:
    return scenario(f"overlap-{name}", 20 if "50" in options else 8, mps, "overlap", "--duration", "0.3", *options)


CAPS = ("--threads", "100", "50", "25")
MIX = ("mix", "--duration", "0.3", "--elements", "8192", "--repeats", "3")
PARTS = (
    depth(1),
    overlap("slices", False, "--grid", "small"),
    overlap("mps", True, "--grid", "small"),
    overlap("half-slices", False, "--grid", "half", "--processes", "2"),
    overlap("half-mps", True, "--grid", "half", "--processes", "2", *CAPS),
    overlap("four-slices", False, "--grid", "small", "--processes", "4", "--depth", "4"),
    overlap("four-mps", True, "--grid", "small", "--processes", "4", "--depth", "4"),
    scenario("mix-slices", 20, False, *MIX),
    scenario("mix-mps", 60, True, *MIX, *CAPS),
    depth(2),
    depth(3),
    bench("caps", 45, "--modes", "mps", "mps-equal-caps", "--clients", "2", str(CLIENTS), "--kinds", "compute",
          "--grids", "small", "half", "--repeats", "3"),
    bench("memory", 70, "--modes", "time-slicing", "mps", "--clients", "1", str(CLIENTS), "--kinds", "memory",
          "--repeats", "3"),
    bench("scale", 90, "--modes", "time-slicing", "mps", "--clients", "2", "4", "16", "--kinds", "compute",
          "--repeats", "3"),
)  # fmt: skip


def gains(collected: Collected) -> dict[str, Any]:
    """Each expected gain with its measurement, and whether it holds; None: it was not measured."""
    by_load = {}
    table = rows(collected.runs)
    for (grid, launches), least in GAINS.items():
        row = find(table, Load(LoadKind.COMPUTE, grid, launches), CLIENTS, SharingMode.MPS)
        ratio = row.of_time_slicing if row else None
        alone = row.of_one_client if row else None
        by_load[f"{grid.value}, depth {launches}"] = {
            "at_least": least,
            "measured": ratio and ratio.as_json(),
            "of_one_client": alone and alone.as_json(),
            "holds": ratio and ratio.median >= least,
        }
    return by_load


def concurrency(parts: Path) -> dict[str, Any]:
    """The kernels' own records: one process at once in time slices, several under MPS."""
    by_part = {}
    for path in sorted(parts.glob("overlap-*.jsonl")):
        for event in events_of(path):
            if event["event"] == "measured" and event["processes"] > 1 and event["threads_percent"] == 100:
                several = event["sharing"] == "mps"
                at_once = event["at_once"]
                holds = at_once >= SEVERAL_AT_ONCE if several else at_once <= ONE_AT_ONCE
                by_part[path.stem] = {"several": several, "at_once": at_once, "holds": holds}
    return by_part


def events_of(path: Path) -> Events:
    return [json.loads(line) for line in path.read_text().splitlines()]


def pack(out: Path, target: Path) -> None:
    """All of `out` in one file: a machine may bring back few files. The whole file or the one before."""
    part = target.with_name(f"{target.name}.part")
    with tarfile.open(part, "w:gz") as archive:
        archive.add(out, arcname="bench")
    part.replace(target)


def run_parts(parts: Sequence[Part], out: Path, budget: float, quick: bool, done: Callable[[], None]) -> dict[str, str]:
    """How each part ended; `done` is called after each."""
    end, ended = time.monotonic() + budget, {}
    took = expected = 1.0
    for part in parts:
        began = time.monotonic()
        if end - began < part.seconds * min(1.0, took / expected):
            ended[part.name] = "left out: no time"
        else:
            try:
                ended[part.name] = part.run(out, quick, end - began)
            except Exception as error:  # noqa: BLE001 - the other parts have something to say too
                ended[part.name] = f"failed: {type(error).__name__}: {error}"
            took, expected = took + time.monotonic() - began, expected + part.seconds
        done()
        print(f"{part.name}: {ended[part.name]} ({time.monotonic() - began:.0f} s)", flush=True)
    return ended


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--budget", type=float, default=BUDGET_SECONDS, metavar="SECONDS")
    parser.add_argument("--quick", action="store_true", help="a rehearsal: every part as short as possible")
    parser.add_argument("--tar", type=Path, metavar="FILE", help="also pack OUT into this file, after each part")
    parser.add_argument("--parts", nargs="+", choices=[part.name for part in PARTS], help="default: all")
    arguments = parser.parse_args()
    parts = arguments.out / "parts"
    parts.mkdir(parents=True, exist_ok=True)
    chosen = [part for part in PARTS if not arguments.parts or part.name in arguments.parts]
    result: dict[str, Any] = {"environment": environment_block()}

    def packed() -> None:
        if arguments.tar:
            pack(arguments.out, arguments.tar)

    result["parts"] = run_parts(chosen, parts, arguments.budget, arguments.quick, packed)
    files = [path for path in sorted(parts.glob("*.json*")) if result["parts"].get(path.stem) == "ok"]
    collected = read(files) if files else None
    if collected is not None and not collected.simulated:
        result |= {"gains": gains(collected), "concurrency": concurrency(parts)}
    (arguments.out / "expected.json").write_text(json.dumps(result, indent=2) + "\n")
    packed()
    print(json.dumps(result, indent=2))
    checks = [*result.get("gains", {}).values(), *result.get("concurrency", {}).values()]
    return 0 if set(result["parts"].values()) == {"ok"} and all(check["holds"] for check in checks) else 1


if __name__ == "__main__":
    raise SystemExit(main())
