"""An operator under the load of a large fleet: how fast it is, what it needs, and whether it keeps its Lease.

    python -m measurements.scale.operator.fleet --nodes 1000 --out measurements/results/scale/fleet-1000.json

etcd, kube-apiserver and `gpushare operator` are real processes; the operator runs as in a pod, so this needs root.
Nodes have no kubelet: Nodes of about 14 kB and GpuNodes with 8 GPUs are made once, and one process stands in for all
agents. It renews their Leases, and reports each GPU's daemon as ready, with the limits of its share, once the GPU is
assigned. Nine tenths of the nodes have the label `pool: gpu`; of the others each gets a share of its own. Steps, in
this order, once every agent is known to report:

- `oneShare`: a share for the pool; seconds to the first node that is assigned, to the last one, and to Ready.
- `manyShares`: 100 shares, each for one of the other nodes, at once; seconds until all are Ready.
- `limits`: ten of those shares get other limits, as does the share of the pool; seconds until all are in force.
- `changes`: 10 changes of the slots held a second for 30 s; the operator's CPU, in cores.

`operatorCpuSeconds` is the operator's CPU time in a step, which depends little on what else the machine does; beside it
stand those of API server, etcd and the process that stands in for the agents, the part of the machine's cores that
nobody used (`idlePercent`: where nothing is idle, the machine is the limit), and its load. Meanwhile the time between
two renewals of the operator's Lease is watched (`leaseGapSeconds`: it is renewed 5 s after the last answer).
`taskset` binds all of it to some cores of a larger machine. `--before COMMIT` measures that commit too, from a copy of
the same cluster.

`--trouble` measures the first two steps alone, and once more in trouble (`beforeInTrouble`, `afterInTrouble`): from
before the first step on no write to one of the pool's nodes is ever answered, and another one has a share that is
refused. Then `oneShare` waits for all other nodes of the pool, and `readySeconds` are those until the share's status
says that their GPUs are ready.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpushare.api import names
from gpushare.api.gpushare import GpuShare
from gpushare.kube.cache.reflector import Reflector
from gpushare.kube.client import API_ERRORS, GPU_NODES, GPU_SHARES, NODES, Kube, Object
from gpushare.kube.resources import LEASES
from measurements.scale import nodes as base
from measurements.scale import results
from measurements.scale.operator.trouble import REFUSED_NODE, REFUSED_SHARE, trouble
from measurements.scale.trees import trees
from measurements.scale.usage import Usage
from tests.cluster.control_plane import ControlPlane, connected, stop

STEPS = ("oneShare", "manyShares", "limits", "changes")
POOL_PART = 0.9
SHARES = 100
CHANGED_SHARES = 10
CHANGE_SECONDS = 30
AGENTS_AT_ONCE = 24
STEP_LIMIT = 300.0
POLL_SECONDS = 0.5


def share(name: str, label: str, value: str, memory: str = "16Gi") -> Object:
    spec = {
        "nodeSelector": {"matchLabels": {label: value}},
        "clients": {"perGpu": 8, "memory": {"default": memory}},
    }
    return {"apiVersion": names.API_VERSION, "kind": "GpuShare", "metadata": {"name": name}, "spec": spec}


class Agents:
    """All agents in one: a GPU that is assigned is served, with its share's limits."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._due = asyncio.Event()
        self.gpu_nodes = Reflector(kube, GPU_NODES, self._due.set)
        self.shares = Reflector(kube, GPU_SHARES, self._due.set)
        self._held: dict[str, int] = {}
        self._slots = asyncio.Semaphore(AGENTS_AT_ONCE)
        self._writing: set[str] = set()
        self._served: dict[str, object] = {}

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.gpu_nodes.run())
            tasks.create_task(self.shares.run())
            while True:
                await self._due.wait()
                self._due.clear()
                limits = {key[1]: _limits(obj) for key, obj in self.shares.objects.items()}
                for (_, name), obj in list(self.gpu_nodes.objects.items()):
                    wanted = self._wanted(obj, limits)
                    if name not in self._writing and self._served.get(name, ()) != wanted:
                        self._writing.add(name)
                        tasks.create_task(self._report(name, obj, wanted))
                await asyncio.sleep(0.1)

    def hold(self, name: str, turn: int) -> None:
        self._held[name] = turn
        self._due.set()

    def _wanted(self, obj: Object, limits: dict[str, Object]) -> object:
        assigned = (obj.get("spec") or {}).get("assignments") or ()
        served = tuple((item["uuid"], item["share"], json.dumps(limits.get(item["share"]))) for item in assigned)
        return served, self._held.get(obj["metadata"]["name"], 0), obj["metadata"]["generation"] if served else 0

    async def _report(self, name: str, obj: Object, wanted: Any) -> None:
        served, turn, generation = wanted
        daemons = [
            {
                "uuid": uuid,
                "share": owner,
                "ready": True,
                "reason": "Ready",
                "desiredLimits": json.loads(limits),
                "currentLimits": json.loads(limits),
                "serverPid": 4711,
            }
            for uuid, owner, limits in served
        ]
        held = served[:1] if turn else ()
        holders = [{"uuid": gpu[0], "share": gpu[1], "slots": [turn % 8], "pods": [f"team/pod-{turn}"]} for gpu in held]
        status = {"daemons": daemons, "holders": holders}
        status |= {"observedGeneration": generation} if generation else {}
        async with self._slots:
            try:
                if served:
                    await self._kube.patch(
                        GPU_NODES, name, {"status": status}, manager="gpushare-agent", subresource="status"
                    )
                self._served[name] = wanted
            except API_ERRORS:
                pass
            finally:
                self._writing.discard(name)
                self._due.set()


def _limits(obj: Object) -> Object:
    limits = GpuShare.model_validate({**obj, "metadata": {"name": obj["metadata"]["name"]}}).process_limits
    return limits.model_dump(by_alias=True)


class LeaseWatch:
    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self.longest = 0.0
        self.transitions = 0

    async def run(self) -> None:
        """Reads the times that the operator writes, which are more exact than the times of reading."""
        last = ""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            try:
                lease = await self._kube.find(LEASES, "gpushare-operator", base.NAMESPACE)
            except API_ERRORS:
                continue
            spec = (lease or {}).get("spec") or {}
            renewed = spec.get("renewTime") or ""
            if last and renewed and spec.get("holderIdentity"):
                between = datetime.fromisoformat(renewed) - datetime.fromisoformat(last)
                waiting = datetime.now(UTC) - datetime.fromisoformat(renewed)
                self.longest = max(self.longest, between.total_seconds(), waiting.total_seconds())
            last = renewed
            self.transitions = spec.get("leaseTransitions") or 0


async def until(holds: Callable[[], Awaitable[bool]], process: "subprocess.Popen[bytes]") -> float:
    """Seconds until it holds. RuntimeError: the operator has ended; TimeoutError."""
    began = time.monotonic()
    while not await holds():
        if process.poll() is not None:
            raise RuntimeError(f"the operator ended with {process.returncode}")
        if time.monotonic() - began > STEP_LIMIT:
            raise TimeoutError(f"not within {STEP_LIMIT:.0f} s")
        await asyncio.sleep(POLL_SECONDS / 5)
    return time.monotonic() - began


class Steps:
    def __init__(
        self, kube: Kube, agents: Agents, process: "subprocess.Popen[bytes]", nodes: int, left_out: int
    ) -> None:
        """`left_out`: nodes of the pool that get nothing."""
        self._kube, self._agents, self._process = kube, agents, process
        self._pool = round(nodes * POOL_PART)
        self._left_out = left_out
        self._others = [base.name_of(number) for number in range(self._pool, nodes)][:SHARES]

    async def step(self, name: str) -> Object:
        steps = {
            "oneShare": self._one_share,
            "manyShares": self._many_shares,
            "limits": self._limits,
            "changes": self._changes,
        }
        return await steps[name]()

    def _assigned(self) -> int:
        objects = self._agents.gpu_nodes.objects.values()
        return sum(bool((obj.get("spec") or {}).get("assignments")) for obj in objects)

    async def _are(self, shares: list[str], condition: str, observed: bool = False) -> bool:
        """Tells whether all have the condition, by the agents' watch, which costs the API server nothing."""
        for name in shares:
            obj = self._agents.shares.objects.get(("", name), {})
            items = {item["type"]: item for item in (obj.get("status") or {}).get("conditions") or ()}
            item = items.get(condition)
            if item is None or item["status"] != "True":
                return False
            if observed and item.get("observedGeneration") != obj["metadata"]["generation"]:
                return False
        return True

    async def _one_share(self) -> Object:
        await self._kube.create(GPU_SHARES, share("scale", "pool", "gpu"))
        began = time.monotonic()

        async def first() -> bool:
            return self._assigned() > 0

        async def all_nodes() -> bool:
            return self._assigned() >= self._pool - self._left_out

        async def ready() -> bool:
            if not self._left_out:
                return await self._are(["scale"], "Ready")
            status = self._agents.shares.objects["", "scale"].get("status") or {}
            return bool((status.get("gpus") or {}).get("ready", 0) >= base.GPUS * (self._pool - self._left_out))

        await until(first, self._process)
        first_at = time.monotonic() - began
        await until(all_nodes, self._process)
        all_at = time.monotonic() - began
        await until(ready, self._process)
        ready_at = time.monotonic() - began
        return {
            "nodes": self._pool - self._left_out,
            "firstNodeSeconds": round(first_at, 2),
            "allNodesSeconds": round(all_at, 2),
            "readySeconds": round(ready_at, 2),
        }

    async def _many_shares(self) -> Object:
        shares = [f"one-{index:03}" for index in range(len(self._others))]
        await base.all_of(
            self._kube.create(GPU_SHARES, share(name, "kubernetes.io/hostname", node))
            for name, node in zip(shares, self._others, strict=True)
        )
        seconds = await until(lambda: self._are(shares, "Ready"), self._process)
        return {"shares": len(shares), "seconds": round(seconds, 2), "sharesPerSecond": round(len(shares) / seconds, 1)}

    async def _limits(self) -> Object:
        changed = ["scale", *(f"one-{index:03}" for index in range(min(CHANGED_SHARES, len(self._others))))]
        patch = {"spec": {"clients": {"memory": {"default": "8Gi"}}}}
        for name in changed:
            await self._kube.patch(GPU_SHARES, name, patch, manager="measurement")
        seconds = await until(lambda: self._are(changed, "LimitsEnforced", observed=True), self._process)
        return {"shares": len(changed), "seconds": round(seconds, 2)}

    async def _changes(self) -> Object:
        await asyncio.sleep(10)
        before, began, done = Usage.of(self._process.pid).cpu, time.monotonic(), 0
        while (passed := time.monotonic() - began) < CHANGE_SECONDS:
            while done < passed * base.CHANGES_PER_SECOND:
                self._agents.hold(base.name_of(done % self._pool), done + 1)
                done += 1
            await asyncio.sleep(0.05)
        used = Usage.of(self._process.pid).cpu - before
        return {"changes": done, "cores": round(used / (time.monotonic() - began), 3)}


async def fill(kube: Kube, nodes: int) -> None:
    await base.fill(kube, nodes)
    await kube.delete(GPU_SHARES, "scale")
    pool = round(nodes * POOL_PART)
    await base.all_of(
        kube.patch(NODES, base.name_of(number), {"metadata": {"labels": {"pool": "other"}}}, manager="measurement")
        for number in range(pool, nodes)
    )


async def measured(
    plane: ControlPlane, python: Path, tree: Path, nodes: int, steps: Sequence[str], in_trouble: bool, log: Path
) -> Object:
    command, environ = plane.as_in_a_pod(python, tree, base.operator_command())
    environ |= base.OPERATOR_ENVIRONMENT
    result: Object = results.runs_on(python)
    kube = await connected(plane)
    agents, lease, stack = Agents(kube), LeaseWatch(kube), AsyncExitStack()
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=tree, env=environ, stdout=output, stderr=output)  # noqa: ASYNC220
    tasks = [asyncio.create_task(work) for work in (agents.run(), lease.run(), base.renew(kube, nodes))]
    for task in tasks:
        task.add_done_callback(_said)
    try:
        await agents.gpu_nodes.synced.wait()

        async def leads() -> bool:
            return _contains(log, "planning starts")

        result["startSeconds"] = round(await until(leads, process), 1)

        async def reporting() -> bool:
            objects = agents.gpu_nodes.objects.values()
            return all((obj.get("status") or {}).get("conditions") for obj in objects)

        result["agentsKnownSeconds"] = round(await until(reporting, process), 1)
        result["residentAtStartMib"] = round(Usage.of(process.pid).resident, 1)
        if in_trouble:
            await stack.enter_async_context(trouble(kube, share(REFUSED_SHARE, "kubernetes.io/hostname", REFUSED_NODE)))
        fleet = Steps(kube, agents, process, nodes, 2 if in_trouble else 0)
        for name in steps:
            pids = {"operator": process.pid, **plane.pids, "agents": os.getpid()}
            before = {part: Usage.of(pid).cpu for part, pid in pids.items()}
            ticks = results.processor_ticks()
            try:
                result[name] = await fleet.step(name)
            except TimeoutError as error:
                result[name] = {"failed": str(error)}
            for part, pid in pids.items():
                result[name][f"{part}CpuSeconds"] = round(Usage.of(pid).cpu - before[part], 2)
            result[name]["idlePercent"] = results.idle_percent(ticks)
            result[name]["load"] = results.load()
            print(f"{log.stem} {name}: {json.dumps(result[name])}", file=sys.stderr, flush=True)
        usage = Usage.of(process.pid)
        result |= {"residentMib": round(usage.resident, 1), "peakMib": round(usage.peak, 1)}
    except RuntimeError as error:
        result["failed"] = str(error)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        stop(process)
        await stack.aclose()
        await kube.close()
    result |= {"leaseGapSeconds": round(lease.longest, 2), "load": results.load()}
    return result


def _contains(log: Path, text: str) -> bool:
    return text in log.read_text()


def _said(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and task.exception() is not None:
        print(f"the measurement itself failed: {task.exception()!r}", file=sys.stderr, flush=True)


async def run(args: argparse.Namespace, scratch: Path) -> Object:
    pythons = {"after": args.python, "before": args.before_python or args.python}
    original = ControlPlane(scratch / "cluster").create()
    with original.running():
        kube = await connected(original)
        await fill(kube, args.nodes)
        await kube.close()
    figures: Object = {
        "what": "python -m measurements.scale.operator.fleet; see its documentation",
        "environment": {
            "nodes": args.nodes,
            "gpusPerNode": base.GPUS,
            "before": args.before,
            "trouble": args.trouble,
            **results.machine(),
        },
    }
    steps = STEPS[:2] if args.trouble else STEPS
    with trees(args.before, scratch) as compared:
        runs = [(which, which, False) for which in compared]
        if args.trouble:
            runs += [(f"{which}InTrouble", which, True) for which in compared]
        for name, which, in_trouble in runs:
            python, tree, log = pythons[which], compared[which], args.logs / f"{name}.log"
            with original.copy(scratch / f"{name}-cluster").running() as plane:
                figures[name] = await measured(plane, python, tree, args.nodes, steps, in_trouble, log)
            print(f"{name}: {json.dumps(figures[name])}", file=sys.stderr, flush=True)
            if args.out is not None:
                results.write(figures, args.out)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--before", metavar="COMMIT", help="measure the operator of this commit too")
    parser.add_argument("--trouble", action="store_true", help="beside a node that hangs and a refused share, too")
    results.add_pythons(parser)
    results.add_out(parser)
    parser.add_argument("--logs", type=Path, metavar="DIRECTORY", help="where to leave the operators' logs")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gpushare-scale-") as scratch:
        args.logs = args.logs or Path(scratch)
        args.logs.mkdir(parents=True, exist_ok=True)
        figures = asyncio.run(run(args, Path(scratch)))
    if args.out is None:
        results.write(figures, None)


if __name__ == "__main__":
    main()
