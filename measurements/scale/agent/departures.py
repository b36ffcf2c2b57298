"""Measures the time from a pod's deletion to its client's `terminate_client`, beside whatever else ends clients: two
commits in turns.

    python -m measurements.scale.agent.departures --before b3e95eca --out measurements/results/scale/departures.json

Four pods of one GPU depart one after the other, or together within half a second: with nothing else to end, beside 40
clients of the GPU that a change ends after `maxWait` or that violate their grant, or beside a GPU whose MPS daemon
hangs, where a pod departs too.
The node is `departing_node.py`: an agent with all its loops, and an MPS daemon whose every command takes 20 ms.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from measurements.scale import results
from measurements.scale.trees import trees

NODE = Path(__file__).with_name("departing_node.py")


def measured_in(tree: Path, repeats: int) -> dict[str, list[float]]:
    """Figures measured with the product, and the unit tests' fake node, as they are in `tree`."""
    environment = os.environ | {"PYTHONPATH": f"{tree}/operator:{tree}/workload:{tree}"}
    command = [sys.executable, "-P", str(NODE), str(repeats)]
    done = subprocess.run(command, env=environment, cwd="/", stdout=subprocess.PIPE, text=True, check=True)
    times: dict[str, list[float]] = json.loads(done.stdout)
    return times


def summary(milliseconds: Sequence[float]) -> dict[str, float]:
    ordered = sorted(milliseconds)
    return {
        "deletions": len(ordered),
        "medianMilliseconds": round(statistics.median(ordered), 1),
        "p90Milliseconds": round(percentile(ordered, 90), 1),
        "p99Milliseconds": round(percentile(ordered, 99), 1),
        "largestMilliseconds": round(ordered[-1], 1),
    }


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Nearest rank: the smallest value that so many of all do not exceed."""
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def compare(commit: str, repeats: int, rounds: int) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as scratch, trees(commit, Path(scratch)) as compared:
        runs: dict[str, list[dict[str, list[float]]]] = {which: [] for which in compared}
        for _ in range(rounds):
            for which, tree in compared.items():
                runs[which].append(measured_in(tree, repeats))
        return {which: _by_way(times) for which, times in runs.items()}


def _by_way(runs: Sequence[dict[str, list[float]]]) -> dict[str, object]:
    """`medianOfRounds`: of each round, in its order."""
    return {
        way: {
            **summary([time for times in runs for time in times[way]]),
            "medianOfRounds": [round(statistics.median(times[way]), 1) for times in runs],
        }
        for way in runs[0]
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=4, help="of every way, in each round")
    parser.add_argument("--rounds", type=int, default=4, help="turns of the two products")
    parser.add_argument("--before", default="", help="a commit to compare with")
    results.add_out(parser)
    args = parser.parse_args()
    compared = compare(args.before, args.repeats, args.rounds)
    results.write(
        {"repeats": args.repeats, "rounds": args.rounds, "environment": results.machine(), **compared}, args.out
    )


if __name__ == "__main__":
    main()
