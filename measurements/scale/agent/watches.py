"""What the watches of many agents cost an API server: CPU of one write of a GpuShare, and memory.

    python -m measurements.scale.agent.watches --out measurements/results/scale/watches.json

`anAgent`: how many watches an agent has open, counted on a real cluster by the API server's audit log: before there is
a share, with a share of slots that nobody uses, with clients in two namespaces, and with a share for claims too.

`rounds`: etcd and kube-apiserver are real, hold 1,000 nodes with 8 GPUs, and are started anew for each measurement from
a copy of that state. One process has the watches of 1,000 agents, each watch with a connection of its own as an agent
has them: of all GpuShares, of its own GpuNode, of its own node's pods. Once it is quiet come writes of a share's spec,
and as many of the slots in use in its status, which the operator counts. `cpuMilliseconds` is the API server's CPU time
of one write, without what it used in as much time before; `without` is the same where nobody watches. `lastHasIt`:
milliseconds from a write's request until the last of the 1,000 watchers has read it, on the same cores.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from gpushare.kube.client import GPU_NODES, GPU_SHARES, PODS, Kube, Object, Resource
from measurements.scale import nodes as base
from measurements.scale import results
from measurements.scale.usage import Usage
from tests.cluster.control_plane import MANAGER, ControlPlane, connected
from tests.cluster.harness import Harness, own_cluster, wait_until

CLUSTER = "watches"
AGENT = "system:serviceaccount:gpushare-system:gpushare-agent"
SHARE = "scale"
STARTS_PER_SECOND = 50
QUIET_SECONDS = 5.0
WINDOW_SECONDS = 10.0
WRITES = 30
LIMIT = 60.0


# One agent of ours


def open_watches(harness: Harness) -> Object:
    """Open watches by resource: what the API server has begun to answer to the agent, and not ended."""
    open_by_id: dict[str, str] = {}
    for line in harness.audit():
        if line["verb"] != "watch" or line["user"]["username"] != AGENT:
            continue
        if line["stage"] == "ResponseStarted":
            open_by_id[line["auditID"]] = line["objectRef"]["resource"]
        else:
            open_by_id.pop(line["auditID"], None)
    return dict(sorted(Counter(open_by_id.values()).items()))


def watches_of_an_agent() -> Object:
    with own_cluster(CLUSTER) as harness:
        harness.kubectl("label", "node", "node1", "pool=gpu", "--overwrite")
        counts = {"withoutShare": open_watches(harness)}
        with harness.share("slots", per_node=1), harness.namespace() as first, harness.namespace() as other:
            counts["withSlots"] = open_watches(harness)
            for tenant in (first, other):
                tenant.neighbours("slots", 2)
            wait_until("the events of both namespaces", lambda: open_watches(harness).get("events", 0) >= 2)
            counts["withClientsInTwoNamespaces"] = open_watches(harness)
            with harness.share("claims", per_node=1, delivery="ResourceClaim"):
                wait_until("its slices", lambda: "resourceslices" in open_watches(harness))
                counts["withClaimsToo"] = open_watches(harness)
        return counts


# A thousand agents, imitated


class Watchers:
    """The watches of `agents` agents. `seen`: when the watches of the share showed it, by its resourceVersion."""

    def __init__(self, kube: Kube, agents: int) -> None:
        self._kube = kube
        self._agents = agents
        self.seen: dict[str, list[float]] = {}

    async def run(self) -> None:
        version = (await self._kube.list_all(GPU_SHARES))["metadata"]["resourceVersion"]
        async with asyncio.TaskGroup() as tasks:
            for number in range(self._agents):
                name = base.name_of(number)
                for resource, selectors in (
                    (GPU_SHARES, {}),
                    (GPU_NODES, {"fieldSelector": f"metadata.name={name}"}),
                    (PODS, {"fieldSelector": f"spec.nodeName={name}"}),
                ):
                    tasks.create_task(self._follow(resource, version, selectors))
                await asyncio.sleep(1 / STARTS_PER_SECOND)

    async def _follow(self, resource: Resource, version: str, selectors: dict[str, str]) -> None:
        async for event in self._kube.watch(resource, None, version, selectors):
            if resource is GPU_SHARES and event["type"] != "BOOKMARK":
                self.seen.setdefault(event["object"]["metadata"]["resourceVersion"], []).append(time.monotonic())
        raise RuntimeError(f"a watch of {resource.plural} ended before the measurement did")

    async def all_have(self, version: str) -> float:
        """When the last one had it."""
        end = time.monotonic() + LIMIT
        while len(self.seen.get(version, ())) < self._agents:
            if time.monotonic() > end:
                raise TimeoutError(f"{len(self.seen.get(version, ()))} of {self._agents} watchers have it")
            await asyncio.sleep(0.01)
        return max(self.seen[version])


def spec_of(turn: int) -> Object:
    return {"spec": {"clients": {"memory": {"default": f"{8 + turn % 8}Gi"}}}}


def status_of(turn: int) -> Object:
    return {"status": {"slots": {"total": 64, "used": turn % 64}}}


async def write(kube: Kube, turn: int, of_status: bool) -> str:
    body = status_of(turn) if of_status else spec_of(turn)
    subresource = "status" if of_status else None
    obj = await kube.patch(GPU_SHARES, SHARE, body, manager=MANAGER, subresource=subresource)
    return str(obj["metadata"]["resourceVersion"])


async def cpu_of_writes(kube: Kube, pid: int, watchers: Watchers | None, of_status: bool, idle: float) -> Object:
    """`idle`: what the API server uses in WINDOW_SECONDS anyway."""
    before, began, last = Usage.of(pid).cpu, time.monotonic(), []
    for turn in range(WRITES):
        await asyncio.sleep(max(0.0, began + turn * WINDOW_SECONDS / WRITES - time.monotonic()))
        asked = time.monotonic()
        version = await write(kube, turn + 1, of_status)
        if watchers is not None:
            last.append((await watchers.all_have(version) - asked) * 1000)
    await asyncio.sleep(max(0.0, began + WINDOW_SECONDS - time.monotonic()))
    used = Usage.of(pid).cpu - before - idle * (time.monotonic() - began) / WINDOW_SECONDS
    figures: Object = {"cpuMilliseconds": round(used / WRITES * 1000, 1)}
    return figures | ({"lastHasIt": {"p50": round(statistics.median(last)), "max": round(max(last))}} if last else {})


async def measured(plane: ControlPlane, agents: int) -> Object:
    kube, pid = await connected(plane), plane.pids["apiServer"]
    watchers = Watchers(kube, agents) if agents else None
    following = asyncio.create_task(watchers.run()) if watchers else None
    try:
        if watchers is not None:
            await asyncio.sleep(agents / STARTS_PER_SECOND + QUIET_SECONDS)
        for turn in range(WRITES, WRITES + 5):  # what a first write costs only once
            for of_status in (False, True):
                version = await write(kube, turn + 1, of_status)
                if watchers is not None:
                    await watchers.all_have(version)
        await asyncio.sleep(QUIET_SECONDS)
        before = Usage.of(pid)
        await asyncio.sleep(WINDOW_SECONDS)
        after = Usage.of(pid)
        idle = after.cpu - before.cpu
        return {
            "idleCores": round(idle / WINDOW_SECONDS, 3),
            "residentMib": round(after.resident),
            "writesOfSpec": await cpu_of_writes(kube, pid, watchers, False, idle),
            "writesOfSlotsInUse": await cpu_of_writes(kube, pid, watchers, True, idle),
            "load": results.load(),
        }
    finally:
        if following is not None:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        await kube.close()


async def rounds(args: argparse.Namespace, scratch: Path) -> list[Object]:
    original = ControlPlane(scratch / "cluster").create()
    with original.running():
        kube = await connected(original)
        await base.fill(kube, args.agents)
        await kube.close()
    figures = []
    for number in range(args.rounds):
        figures_of_round: Object = {}
        for which, agents in (("without", 0), ("with", args.agents)):
            with original.copy(scratch / f"{number}-{which}").running() as plane:
                figures_of_round[which] = await measured(plane, agents)
        print(f"round {number + 1}: {json.dumps(figures_of_round)}", file=sys.stderr, flush=True)
        figures.append(figures_of_round)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    results.add_out(parser)
    args = parser.parse_args()
    an_agent = watches_of_an_agent()
    print(json.dumps(an_agent), file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="gpushare-watches-") as scratch:
        figures = asyncio.run(rounds(args, Path(scratch)))
    whole = {
        "what": "python -m measurements.scale.agent.watches; see its documentation",
        "environment": {"cpu": results.processor(), **results.machine()},
        "agents": args.agents,
        "writesOfEachKind": WRITES,
        "anAgent": an_agent,
        "rounds": figures,
    }
    results.write(whole, args.out)


if __name__ == "__main__":
    main()
