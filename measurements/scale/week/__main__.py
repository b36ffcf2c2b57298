"""A simulated week of 10,000 GPUs: how they are used, and who waits, by arrangement, scheduler and load.

    python -m measurements.scale.week --trace DIR --out measurements/results/scale/week.json

DIR has the two CSV files that `trace` names. Each of `--loads`, each arrangement, the scheduler as it is by default
("spread") and packed, and each seed is a week of its own; weeks of one load and seed have the same pods and nodes. At
the lowest load, slots are packed with other weights too. A figure is [mean, least, most] over the seeds. Nothing but
memory is used, and the same seeds give the same figures.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from gpushare.kube.client import Object
from measurements.scale import results
from measurements.scale.week import page
from measurements.scale.week.arrangements import ARRANGEMENTS, divide, most_needed, nodes_of
from measurements.scale.week.demand import MOVED, WINDOW_DAYS, week
from measurements.scale.week.figures import figures, mix, over_seeds
from measurements.scale.week.scheduler import GPU_WEIGHT, nodes_to_find
from measurements.scale.week.simulate import Simulation
from measurements.scale.week.trace import COMMIT, SHA256, read

GPUS = 10_000
LOADS = (60, 80, 95)
SEEDS = (1, 2, 3)
WEIGHED = "slots"
WEIGHTS = (1, 20, 100)
"""Weights of a slot, beside those of `GPU_WEIGHT`."""
Figures = dict[str, float]


def one_week(
    directory: Path, gpus: int, load: int, seed: int, weights: Sequence[int]
) -> tuple[Object, dict[str, Figures]]:
    """(what was asked, figures by arrangement and scheduler) of one load and seed; of `WEIGHED` also by weight."""
    trace = read(directory)
    wanted = week(trace, gpus, load / 100, seed)
    nodes = nodes_of(trace.shapes, gpus, seed)
    whole = sum(node.gpus for node in nodes)
    by_case, needs = {}, {}
    for name, arrangement in ARRANGEMENTS.items():
        need = most_needed(arrangement, wanted.jobs)
        pools = divide(nodes, need, arrangement.large)
        needs[name] = {pool: round(value) for pool, value in need.items()}
        ways = {"spread": (False, GPU_WEIGHT), "packed": (True, GPU_WEIGHT)}
        if name == WEIGHED:
            ways |= {str(weight): (True, weight) for weight in weights}
        for way, (packed, weight) in ways.items():
            began = time.process_time()
            outcome = Simulation(arrangement, nodes, pools, wanted.jobs, seed, packed=packed, gpu_weight=weight).run()
            by_case[f"{name}.{way}"] = figures(outcome, whole)
            seconds = round(time.process_time() - began, 1)
            print(f"{load} % seed {seed}: {name}, {way}: {seconds} s of CPU", file=sys.stderr, flush=True)
    asked = {
        "pods": sum(1 for job in wanted.jobs if job.arrival >= 0),
        "podsAtTheStart": sum(1 for job in wanted.jobs if job.arrival < 0),
        "copies": wanted.copies,
        "gpus": round(wanted.asked),
        "mix": mix(wanted.jobs),
        "mostNeeded": needs,
        "nodes": len(nodes),
    }
    return asked, by_case


def simulate(directory: Path, gpus: int, loads: Sequence[int], seeds: Sequence[int], processes: int) -> Object:
    trace = read(directory)
    with ProcessPoolExecutor(processes) as workers:
        begun = {
            (load, seed): workers.submit(one_week, directory, gpus, load, seed, WEIGHTS if load == min(loads) else ())
            for load in sorted(loads, reverse=True)
            for seed in seeds
        }
        done = {case: future.result() for case, future in begun.items()}

    def over(load: int, case: str) -> dict[str, list[float]]:
        return over_seeds([done[load, seed][1][case] for seed in seeds])

    weighed = {f"{WEIGHED}.{weight}": str(weight) for weight in WEIGHTS}
    nodes = max(asked["nodes"] for asked, _ in done.values())
    return {
        "what": "python -m measurements.scale.week; see its documentation",
        "trace": {
            "source": "github.com/alibaba/clusterdata, cluster-trace-gpu-v2023/csv",
            "commit": COMMIT if trace.sha256 == SHA256 else "unknown: the files differ from those of the known commit",
            "sha256": dict(trace.sha256),
            "pods": len(trace.runs),
            "leftOutNeverStarted": trace.never_started,
        },
        "model": {
            "gpus": gpus,
            "nodes": nodes,
            "nodesScoredForAPod": nodes_to_find(nodes),
            "windowDays": WINDOW_DAYS,
            "copiesMovedSeconds": MOVED,
            "packedWeights": {"cpu": 1, "memory": 1, "extended resource": GPU_WEIGHT},
            "arrangements": {name: arrangement.what for name, arrangement in ARRANGEMENTS.items()},
        },
        "seeds": list(seeds),
        "asked": {str(load): {str(seed): done[load, seed][0] for seed in seeds} for load in loads},
        "weeks": {
            str(load): {case: over(load, case) for case in done[load, seeds[0]][1] if case not in weighed}
            for load in loads
        },
        "weights": {
            "arrangement": WEIGHED,
            "load": min(loads),
            **{way: over(min(loads), case) for case, way in weighed.items()},
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, required=True, metavar="DIR", help="the directory of the CSV files")
    parser.add_argument("--gpus", type=int, default=GPUS)
    parser.add_argument("--loads", type=int, nargs="+", default=list(LOADS), help="percent of all GPU time")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--page", action="store_true", help="write the page's tables and pictures too")
    results.add_out(parser)
    args = parser.parse_args()
    try:
        result = simulate(args.trace, args.gpus, args.loads, args.seeds, args.processes)
    except (OSError, ValueError) as error:
        sys.exit(str(error))
    results.write(result, args.out)
    if args.page:
        page.write(result)


if __name__ == "__main__":
    main()
