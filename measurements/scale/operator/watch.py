"""What the operator needs to know a fleet: memory, CPU to settle, and CPU while the fleet changes.

    python -m measurements.scale.operator.watch --before ce6b93a --watchers \\
        --out measurements/results/scale/operator-watch.json

Starts etcd and kube-apiserver on loopback ports in a scratch directory and fills them once: Nodes of about 14 kB (25
images, 30 labels), a GpuNode with 8 GPUs for each, and one GpuShare that matches all of them. Every measurement begins
from a copy of that state, with one process that is measured:

- `operator`: `gpushare operator` of this work tree, and of the commit `--before` from a git worktree of its own. It
  takes the Lease, labels all nodes and assigns all GPUs. Settled: every GPU is assigned and the process used less than
  5 % of a core for 10 s. Then come 10 changes of a GpuNode's status a second for 60 s, each of a node of its own, and
  the heartbeats of the Nodes, each every 5 minutes as the kubelet sends them. All the time each agent's Lease is
  renewed every 10 s, as agents do.
- `watch`: nothing but following Nodes and GpuNodes, by kopf as it comes, by kopf without its copies for diffs, and by
  our Reflector, each keeping the same few fields. Settled and changed as above.

Figures are from /proc/PID: VmRSS once settled, VmHWM at the end, user and system time.
"""

import argparse
import asyncio
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from gpushare.kube.client import (
    GPU_NODES,
    GPU_SHARES,
    NODES,
    Kube,
    Object,
    Resource,
    connect,
)
from localcluster.paths import REPOSITORY
from measurements.scale import results
from measurements.scale.nodes import (
    CHANGES_PER_SECOND,
    GPUS,
    OPERATOR_ENVIRONMENT,
    conditions,
    fill,
    gpu_node_status,
    name_of,
    operator_command,
    renew,
    until,
)
from measurements.scale.trees import trees
from measurements.scale.usage import Usage
from tests.cluster.control_plane import ControlPlane, connected, stop

HEARTBEAT_SECONDS = 300
QUIET_SECONDS = 10
QUIET_CPU = 0.05
SETTLE_LIMIT = 400.0
WATCHERS = ("kopf", "kopf-without-diffs", "reflector")


# What is measured of a process


async def measure(kube: Kube, pid: int, nodes: int, settled: Callable[[], Awaitable[bool]], seconds: int) -> Object:
    began = time.monotonic()
    await until(settled, SETTLE_LIMIT)
    quiet = await _quiet(pid)
    at_rest = Usage.of(pid)
    changes = await change(kube, nodes, seconds)
    after = Usage.of(pid)
    return {
        "settleSeconds": round(quiet - began, 1),
        "settleCpuSeconds": round(at_rest.cpu, 2),
        "residentMib": round(at_rest.resident, 1),
        "changesCpuSeconds": round(after.cpu - at_rest.cpu, 2),
        "changes": changes,
        "residentAfterChangesMib": round(after.resident, 1),
        "peakMib": round(after.peak, 1),
    }


async def _quiet(pid: int) -> float:
    """Returns since when the process has been quiet, by time.monotonic."""
    since, cpu = time.monotonic(), Usage.of(pid).cpu
    end = since + SETTLE_LIMIT
    while time.monotonic() < end:
        await asyncio.sleep(1)
        now = Usage.of(pid).cpu
        if now - cpu > QUIET_CPU * QUIET_SECONDS:
            since, cpu = time.monotonic(), now
        elif time.monotonic() - since >= QUIET_SECONDS:
            return since
    raise TimeoutError(f"process {pid} was not quiet within {SETTLE_LIMIT:.0f} s")


async def change(kube: Kube, nodes: int, seconds: int) -> int:
    """Changes of GpuNodes and heartbeats of Nodes, evenly over `seconds`; returns how many GpuNodes were changed."""
    began, changes, beats = time.monotonic(), 0, 0
    while (passed := time.monotonic() - began) < seconds:
        while changes < passed * CHANGES_PER_SECOND:
            name, status = name_of(changes % nodes), gpu_node_status(changes % nodes, changes + 1)
            await kube.patch(GPU_NODES, name, status, manager="gpushare-agent", subresource="status")
            changes += 1
        while beats < passed * nodes / HEARTBEAT_SECONDS:
            body = {"status": {"conditions": conditions(time.time())}}
            await kube.patch(NODES, name_of(beats % nodes), body, manager="kubelet", subresource="status")
            beats += 1
        await asyncio.sleep(0.02)
    return changes


async def measured(
    plane: ControlPlane,
    command: list[str],
    tree: Path,
    nodes: int,
    seconds: int,
    log: Path,
    python: Path = Path(sys.executable),
) -> Object:
    """`python`: the interpreter, with the packages of the image where the figures are to be the image's."""
    started, environ = plane.as_in_a_pod(python, tree, command)
    environ |= {"KUBECONFIG": str(plane.kubeconfig)} | OPERATOR_ENVIRONMENT
    kube = await connected(plane)
    try:
        with log.open("ab") as output:
            process = subprocess.Popen(started, cwd=tree, env=environ, stdout=output, stderr=output)  # noqa: ASYNC220
        try:

            async def settled() -> bool:
                if process.poll() is not None:
                    raise RuntimeError(f"the process ended with {process.returncode}: see {log}")
                return await _assigned(kube, nodes) if "operator" in command else _is_complete(log)

            renewing = asyncio.create_task(renew(kube, nodes))
            try:
                return await measure(kube, process.pid, nodes, settled, seconds)
            finally:
                renewing.cancel()
        finally:
            stop(process)
    finally:
        await kube.close()


def _is_complete(log: Path) -> bool:
    return COMPLETE in log.read_text()


async def _assigned(kube: Kube, nodes: int) -> bool:
    """Asked rarely, since it lists everything."""
    await asyncio.sleep(3)
    counts = ((await kube.get(GPU_SHARES, "scale")).get("status") or {}).get("gpus") or {}
    return bool(counts.get("assigned") == nodes * GPUS)


# The watchers that are compared


COMPLETE = "complete"
"""What a watcher prints once it knows everything."""


async def watch(kind: str, nodes: int) -> None:
    """Follows Nodes and GpuNodes until the process is ended, and keeps of each what a plan reads."""
    if kind == "reflector":
        await _watch_by_reflector()
    else:
        await _watch_by_kopf(nodes, copies=kind == "kopf")


def _kept(obj: Object) -> Object:
    metadata, status = obj["metadata"], obj.get("status") or {}
    return {
        "metadata": {key: metadata.get(key) for key in ("name", "resourceVersion", "labels")},
        "spec": {"assignments": (obj.get("spec") or {}).get("assignments")},
        "status": {key: status.get(key) for key in ("allocatable", "gpus", "holders")},
    }


async def _watch_by_reflector() -> None:
    from gpushare.kube.cache.reflector import Reflector

    kube = await connect("gpushare-scale")
    reflectors = [Reflector(kube, resource, lambda: None, prune=_kept) for resource in (NODES, GPU_NODES)]
    async with asyncio.TaskGroup() as tasks:
        for reflector in reflectors:
            tasks.create_task(reflector.run())
        for reflector in reflectors:
            await reflector.synced.wait()
        print(COMPLETE, flush=True)


async def _watch_by_kopf(nodes: int, *, copies: bool) -> None:
    import kopf

    class NoDiffBase(kopf.DiffBaseStorage):
        def fetch(self, *, body: Any) -> None:
            return None

        def build(self, *, body: Any, extra_fields: Any = None) -> Any:
            return kopf.BodyEssence()

        def store(self, *, body: Any, patch: Any, essence: Any) -> None:
            pass

    registry, settings = kopf.OperatorRegistry(), kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.watching.server_timeout = 290
    if not copies:
        settings.persistence.diffbase_storage = NoDiffBase()
    known: dict[str, dict[str, Object]] = {NODES.plural: {}, GPU_NODES.plural: {}}
    kopf.on.login(registry=registry)(kopf.login_with_kubeconfig)

    def follow(resource: Resource) -> None:
        @kopf.on.event(resource.group, resource.version, resource.plural, registry=registry)
        async def changed(event: Any, name: str, **_: Any) -> None:
            new = name not in known[resource.plural]
            known[resource.plural][name] = _kept(event["object"])
            if new and all(len(objects) == nodes for objects in known.values()):
                print(COMPLETE, flush=True)

    follow(NODES)
    follow(GPU_NODES)
    await kopf.operator(registry=registry, settings=settings, clusterwide=True, standalone=True, identity="scale")  # type: ignore[arg-type]


# Everything together


def summary(runs: list[Object]) -> Object:
    figures = [key for key in runs[0] if key != "changes"]
    return {
        key: {"median": round(median(run[key] for run in runs), 2), "runs": [run[key] for run in runs]}
        for key in figures
    }


async def run(args: argparse.Namespace, compared: Mapping[str, Path], scratch: Path) -> None:
    """The result is written after each repeat, so that a run that is broken off leaves those before."""
    original = ControlPlane(scratch / "cluster").create()
    with original.running():
        kube = await connected(original)
        sizes = await fill(kube, args.nodes)
        await kube.close()
    subjects = {which: (operator_command(), tree) for which, tree in compared.items()}
    for kind in WATCHERS if args.watchers else ():
        subjects[kind] = (
            ["-m", "measurements.scale.operator.watch", "--watch", kind, "--nodes", str(args.nodes)],
            REPOSITORY,
        )
    runs: dict[str, list[Object]] = {subject: [] for subject in subjects}
    for repeat in range(args.repeats):
        for subject, (command, tree) in subjects.items():
            copy, log = original.copy(scratch / f"{subject}-{repeat}"), scratch / f"{subject}-{repeat}.log"
            try:
                with copy.running():
                    figures = await measured(copy, command, tree, args.nodes, args.seconds, log)
            except (RuntimeError, TimeoutError) as error:
                print(f"{subject} {repeat + 1}/{args.repeats} left out: {error}", file=sys.stderr, flush=True)
                continue
            runs[subject].append(figures)
            print(f"{subject} {repeat + 1}/{args.repeats}: {json.dumps(figures)}", file=sys.stderr, flush=True)
        _write(args.out, result(runs, sizes, environment(args)))


def result(runs: dict[str, list[Object]], sizes: Object, measured_on: Object) -> Object:
    return {
        "what": "python -m measurements.scale.operator.watch; MiB and CPU seconds of one process, see there",
        "environment": measured_on,
        "objectBytes": sizes,
        "operator": {subject: summary(runs[subject]) for subject in ("before", "after") if runs.get(subject)},
        "watch": {subject: summary(runs[subject]) for subject in WATCHERS if runs.get(subject)},
    }


def environment(args: argparse.Namespace) -> Object:
    return {
        "nodes": args.nodes,
        "gpusPerNode": GPUS,
        "changesPerSecond": CHANGES_PER_SECOND,
        "seconds": args.seconds,
        "before": args.before,
        "cpu": results.processor(),
        **results.machine(),
        "kopf": version("kopf"),
        "kubernetes": "1.37.0",
    }


def _write(out: Path | None, runs: Object) -> None:
    """JSON, with the runs of one figure on one line."""
    text = json.dumps(runs, indent=2)
    results.write_text(re.sub(r"\[\s+([^][{}]*?)\s+\]", lambda match: f"[{' '.join(match[1].split())}]", text), out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=60, help="of changes, after the process has settled")
    parser.add_argument("--before", default="", help="a commit to compare with")
    parser.add_argument("--watchers", action="store_true", help="compare ways to follow Nodes and GpuNodes, too")
    results.add_out(parser)
    parser.add_argument("--watch", choices=WATCHERS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.watch:
        asyncio.run(watch(args.watch, args.nodes))
        return
    with tempfile.TemporaryDirectory() as scratch, trees(args.before, Path(scratch)) as compared:
        asyncio.run(run(args, compared, Path(scratch)))


if __name__ == "__main__":
    main()
