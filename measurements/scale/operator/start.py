"""How long the operator takes from the start of its process to its first plan, on a small cluster.

    python -m measurements.scale.operator.start --python IMAGE/bin/python --out measurements/results/scale/start.json

etcd, kube-apiserver and `gpushare operator` are real processes; the operator runs as in a pod, so this needs root. The
cluster has `--nodes` nodes of 8 GPUs and a GpuShare that has them all, as an operator finds it that follows another
one. Before each repeat the share's finalizer is taken away, so that the first plan has a write, whose answer is the end
of what is measured: that is a little later than the plan. The Lease is in one of two states: `free`, given back by the
operator before, or `none`, as after an install. Stages follow each other, in seconds of the clock and of the process'
CPU time:

- `interpreter`: from the request to start the process, with the mounts that make it look like a pod, to its first line;
- `imports`: the operator's modules;
- `lease`: kopf's start, the first requests, and the Lease;
- `lists`: until the fleet is known;
- `plan`: the first plan, and its first write.

On a machine that does other work the CPU time counts; the rest of the clock's time is waiting for a core, or for the
API server. With an interpreter whose packages are those of requirements/operator.lock the imports are the image's.
`--before COMMIT` measures that commit too, in turns.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from gpushare.api import names
from gpushare.kube.client import GPU_SHARES, Kube, Object
from gpushare.kube.resources import LEASES
from measurements.scale import nodes as base
from measurements.scale import results
from measurements.scale.parts import PARTS
from measurements.scale.trees import trees
from tests.cluster.control_plane import ControlPlane, connected, stop

STAGES = ("interpreter", "imports", "lease", "lists", "plan")
LEASE_STATES = ("free", "none")
LIMIT_SECONDS = 60.0
MARK = "stage: "
_OPERATOR = """
import importlib, json, logging, sys, time

def mark(stage):
    marked = {"stage": stage, "at": time.time(), "cpu": time.process_time()}
    print("stage: " + json.dumps(marked), file=sys.stderr, flush=True)

mark("interpreter")
for module in sys.argv.pop(1).split(","):
    importlib.import_module(module)
mark("imports")
made, seen = logging.getLogRecordFactory(), set()

def noted(*args, **rest):
    record = made(*args, **rest)
    stage = ""
    if "is held by" in str(record.msg):
        stage = "lease"
    elif "planning starts" in str(record.msg):
        stage = "lists"
    elif record.name == "gpushare.controller.apply":
        stage = "plan"
    if stage and stage not in seen:
        seen.add(stage)
        mark(stage)
    return record

logging.setLogRecordFactory(noted)
from gpushare.cli.main import main
raise SystemExit(main())
"""
"""`gpushare operator`, which says when it has come to the end of each stage, by what it logs."""


async def start_once(plane: ControlPlane, kube: Kube, python: Path, tree: Path, lease: str, log: Path) -> Object:
    """Seconds of each stage, by clock and CPU."""
    await kube.patch(GPU_SHARES, "scale", {"metadata": {"finalizers": []}}, manager="measurement")
    if lease == "none":
        await kube.delete(LEASES, names.OPERATOR_LEASE, namespace=base.NAMESPACE)
    modules = ",".join(("gpushare.cli.main", *PARTS["operator"]))
    arguments = base.operator_command()[2:]
    command, environ = plane.as_in_a_pod(python, tree, ["-s", "-c", _OPERATOR, modules, *arguments])
    environ |= base.OPERATOR_ENVIRONMENT
    with log.open("wb") as output:
        began = time.time()
        process = subprocess.Popen(command, cwd=tree, env=environ, stdout=output, stderr=output)  # noqa: ASYNC220
    try:
        end = time.monotonic() + LIMIT_SECONDS
        while not any(mark["stage"] == STAGES[-1] for mark in _marks(log)):
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"no first plan: see {log}, in a directory of --logs")
            await asyncio.sleep(0.1)
    finally:
        stop(process)
    stages, at, cpu = {}, began, 0.0
    for mark in _marks(log):
        stages[mark["stage"]] = {"seconds": round(mark["at"] - at, 3), "cpuSeconds": round(mark["cpu"] - cpu, 3)}
        at, cpu = mark["at"], mark["cpu"]
    stages["all"] = {"seconds": round(at - began, 3), "cpuSeconds": round(cpu, 3)}
    return stages


def _marks(log: Path) -> list[Object]:
    lines = log.read_text().splitlines()
    return [json.loads(line.removeprefix(MARK)) for line in lines if line.startswith(MARK) and line.endswith("}")]


def summary(runs: list[Object]) -> Object:
    """The median, the least and the most of each stage and of all."""

    def spread(values: list[float]) -> Object:
        return {"median": round(statistics.median(values), 3), "least": min(values), "most": max(values)}

    return {
        stage: {figure: spread([run[stage][figure] for run in runs]) for figure in ("seconds", "cpuSeconds")}
        for stage in (*STAGES, "all")
    }


async def run(args: argparse.Namespace, compared: dict[str, Path], scratch: Path) -> Object:
    pythons = {"after": args.python, "before": args.before_python or args.python}
    runs: dict[str, dict[str, list[Object]]] = {name: {state: [] for state in LEASE_STATES} for name in compared}
    with ControlPlane(scratch / "cluster").create().running() as plane:
        kube = await connected(plane)
        try:
            await base.fill(kube, args.nodes)
            for repeat in range(args.repeats + 1):  # the first one is left out: it gives the share all its GPUs
                for name, tree in compared.items():
                    for state in LEASE_STATES:
                        log = args.logs / f"{name}-{state}-{repeat}.log"
                        run_figures = await start_once(plane, kube, pythons[name], tree, state, log)
                        print(f"{name} {state} {repeat}: {json.dumps(run_figures)}", file=sys.stderr, flush=True)
                        if repeat:
                            runs[name][state].append(run_figures)
        finally:
            await kube.close()
    return {
        name: {state: summary(starts) | {"runs": [run["all"] for run in starts]} for state, starts in by_state.items()}
        for name, by_state in runs.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--before", default="", help="a commit to compare with")
    results.add_pythons(parser)
    results.add_out(parser)
    parser.add_argument("--logs", type=Path, metavar="DIRECTORY", help="where to leave the operators' logs")
    args = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="gpushare-scale-") as scratch,
        trees(args.before, Path(scratch)) as compared,
    ):
        args.logs = args.logs or Path(scratch)
        args.logs.mkdir(parents=True, exist_ok=True)
        measured = asyncio.run(run(args, compared, Path(scratch)))
    environment = {
        "nodes": args.nodes,
        "repeats": args.repeats,
        "before": args.before,
        "cpu": results.processor(),
        **results.machine(),
    }
    what = "python -m measurements.scale.operator.start; seconds, see its documentation"
    results.write({"what": what, "environment": environment, **measured}, args.out)


if __name__ == "__main__":
    main()
