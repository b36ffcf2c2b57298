"""Measures where the CPU time of one round goes: a snapshot, the plan, and what differs from it.

    python -m measurements.scale.decisions.profile --nodes 5000 --out measurements/results/scale/profile-5000.json

One share on all nodes, every GPU served by a current MPS pod, eight slots of each held. `first` is the round after the
operator's start; `next` is one in which 16 nodes changed since. Seconds are CPU time, the best of three; the parts are
each function's share of the round under cProfile, which makes many small calls look dearer than they are.
"""

import argparse
import cProfile
import gc
import pstats
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from gpushare.controller.differences import differences
from gpushare.kube.client import Object
from gpushare.planner import Snapshot, plan
from measurements.scale import results
from measurements.scale.decisions.cases import CHANGED, NOW_TEXT, SETTINGS
from measurements.scale.decisions.objects import GPUS, NOW, served, settled

PARTS = {
    ("fleet_cache.py", "snapshot"): "snapshot of the cache",
    ("fleet_index.py", "__init__"): "facts of nodes and GPUs",
    ("fleet_index.py", "profile"): "profiles of GPUs, where the index finds them",
    ("assign.py", "owners"): "owners",
    ("rollout.py", "rollouts"): "roll-outs",
    ("assign.py", "assignments"): "assignments",
    ("share_summary.py", "summaries"): "what each share has and cannot have",
    ("plan.py", "_reports"): "statuses",
    ("plan.py", "_labels"): "labels",
    ("plan.py", "_moments"): "when time alone changes the plan",
    ("differences.py", "differences"): "what differs from the plan",
}
"""Parts of a round by file and function. Those of the plan but for `profile` follow each other; `owners` and others
ask for profiles."""


def rounds(count: int) -> dict[str, Callable[[], object]]:
    cache, view = settled(count, 1), served(count, 1, slots=8)
    pods, templates = view.pods, view.templates

    def once(decide: Callable[[Snapshot], object], changed: int) -> object:
        taken = replace(cache.snapshot(NOW), pods=pods, templates=templates)
        nodes = (*(replace(node) for node in view.nodes[:changed]), *view.nodes[changed:])
        planned = decide(replace(taken, nodes=nodes))
        return differences(planned, taken, cache, SETTINGS, NOW_TEXT)  # type: ignore[arg-type]

    try:
        from gpushare.planner import FleetMemory
    except ImportError:  # an earlier commit, which remembers nothing
        return {"first": lambda: once(plan, 0), "next": lambda: once(plan, CHANGED)}
    memory = FleetMemory()
    plan(view, memory)
    return {
        "first": lambda: once(plan, 0),
        "next": lambda: once(lambda snapshot: plan(snapshot, memory), CHANGED),
    }


def profiled(work: Callable[[], object]) -> Object:
    gc.collect()
    gc.freeze()
    best = float("inf")
    for _ in range(3):
        began = time.process_time()
        work()
        best = min(best, time.process_time() - began)
    profile = cProfile.Profile(time.process_time)
    profile.runcall(work)
    stats = pstats.Stats(profile)
    total: float = stats.total_tt  # type: ignore[attr-defined]
    parts: dict[str, Object] = {}
    for (file, _, function), (_, calls, _, cumulative, _) in stats.stats.items():  # type: ignore[attr-defined]
        name = PARTS.get((Path(file).name, function))
        known = parts.get(name or "", {}).get("percent", 0.0)
        if name is not None and 100 * cumulative / total >= max(0.5, known):
            parts[name] = {"percent": round(100 * cumulative / total, 1), "calls": calls}
    gc.unfreeze()
    by_part = dict(sorted(parts.items(), key=lambda item: -float(item[1]["percent"])))
    return {"cpuSeconds": round(best, 3), "parts": by_part}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=5000)
    results.add_out(parser)
    args = parser.parse_args()
    result = {
        "what": "python -m measurements.scale.decisions.profile; see its documentation",
        "environment": {
            "nodes": args.nodes,
            "gpusPerNode": GPUS,
            **results.machine(),
        },
        **{name: profiled(work) for name, work in rounds(args.nodes).items()},
    }
    results.write(result, args.out)


if __name__ == "__main__":
    main()
