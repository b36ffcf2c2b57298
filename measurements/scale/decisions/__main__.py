"""How the cost of each pure decision grows with the cluster: CPU seconds, and the slope on a log–log scale.

    python -m measurements.scale.decisions --out measurements/results/scale/decisions.json

Nothing but memory is used: the objects are made as the API server would list them and go through the operator's own
cache. A slope of 1 is proportional, 2 is quadratic; it is fitted over all sizes by least squares. A case that took more
than BUDGET seconds is not tried at a larger size. Seconds are CPU time of the process, the best of up to 15 runs, so
that they depend little on what else the machine does; its load stands beside them. `calls` are the calls of functions
in one run, Python's and C's, with their slope: where that is 1, nothing is done more than once for a node, and what
seconds grow faster than that is the processor's, which waits for memory.

With `--before COMMIT` the same is asked of that commit, in a process of its own with a git worktree. Its
modules must have today's names.
"""

import argparse
import gc
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from gpushare.kube.client import Object
from measurements.scale import results
from measurements.scale.decisions.cases import CASES
from measurements.scale.decisions.objects import GPUS
from measurements.scale.trees import trees

ROOT = Path(__file__).resolve().parents[3]
SIZES = (100, 300, 1000, 2000, 5000)
BUDGET = 20.0
RUNS = 15
ENOUGH = 2.0
"""Seconds of runs after which none is begun."""


def seconds_of(work: Callable[[], object]) -> float:
    gc.collect()
    gc.freeze()  # as the operator does with what it keeps
    best = math.inf
    began = time.process_time()
    for _ in range(RUNS):
        with _a_round():
            start = time.process_time()
            work()
            best = min(best, time.process_time() - start)
        if time.process_time() - began > ENOUGH:
            break
    gc.unfreeze()
    return best


def calls_of(work: Callable[[], object]) -> int:
    calls = 0

    def count(_: object, event: str, __: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def _a_round() -> AbstractContextManager[None]:
    try:
        from gpushare.controller.reconcile import without_collections
    except ImportError:  # an earlier commit, whose rounds are as any other work
        return nullcontext()
    return without_collections()


def slope(points: dict[int, float]) -> float | None:
    """Least squares of log seconds over log nodes; None for fewer than two points."""
    if len(points) < 2:
        return None
    xs, ys = [math.log(size) for size in points], [math.log(max(value, 1e-9)) for value in points.values()]
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    return round(sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / sum((a - x) ** 2 for a in xs), 2)


def measure(wanted: Iterable[str], sizes: Iterable[int]) -> Object:
    chosen, figures = set(wanted), {}
    for name, case, what in CASES:
        if chosen and name not in chosen:
            continue
        points: dict[int, float] = {}
        calls: dict[int, float] = {}
        for size in sorted(sizes):
            if points and (size / max(points)) ** 2 * points[max(points)] > BUDGET * 3:
                break
            work = case(size)
            points[size], calls[size] = seconds_of(work), calls_of(work)
            if points[size] > BUDGET:
                break
        figures[name] = {
            "what": what,
            "seconds": {str(size): round(value, 6) for size, value in points.items()},
            "slope": slope(points),
            "calls": {str(size): value for size, value in calls.items()},
            "callsSlope": slope(calls),
        }
        print(
            f"{name}: {figures[name]['seconds']} slope {figures[name]['slope']}, "
            f"of calls {figures[name]['callsSlope']}",
            file=sys.stderr,
            flush=True,
        )
    return figures


def _of_commit(commit: str, wanted: Iterable[str], sizes: Iterable[int]) -> Object:
    """The same measurement by this file, with the operator of `commit`."""
    with tempfile.TemporaryDirectory() as scratch, trees(commit, Path(scratch)) as compared:
        command = [
            sys.executable,
            "-m",
            "measurements.scale.decisions",
            "--sizes",
            *map(str, sizes),
            "--cases",
            *wanted,
        ]
        environ = {**os.environ, "PYTHONPATH": f"{compared['before']}/operator:{ROOT}"}
        answer = subprocess.run(command, env=environ, check=True, stdout=subprocess.PIPE, cwd=ROOT)
        return dict(json.loads(answer.stdout)["cases"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="nodes, of 8 GPUs each")
    parser.add_argument("--cases", nargs="*", default=[], choices=[name for name, _, _ in CASES] + [[]])
    parser.add_argument("--before", metavar="COMMIT", help="measure this commit too")
    results.add_out(parser)
    args = parser.parse_args()
    result: Object = {
        "what": "python -m measurements.scale.decisions; CPU seconds, see its documentation",
        "environment": {
            "gpusPerNode": GPUS,
            **results.machine(),
        },
        "cases": measure(args.cases, args.sizes),
    }
    if args.before:
        result["environment"]["before"] = args.before
        result["before"] = _of_commit(args.before, args.cases, args.sizes)
    results.write(result, args.out)


if __name__ == "__main__":
    main()
