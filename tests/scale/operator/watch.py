"""What the operator needs to know a fleet: memory, CPU to settle, and CPU while the fleet changes.

    python -m tests.scale.operator.watch --before ce6b93a --watchers --out docs/results/scale/operator-watch.json

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
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from gpushare.api import names
from gpushare.kube.access import kubeconfig_access
from gpushare.kube.client import (
    GPU_NODES,
    GPU_SHARES,
    NAMESPACES,
    NODES,
    Kube,
    Object,
    Resource,
    connect,
    connect_to,
)
from gpushare.kube.coordination.heartbeat import RENEW_SECONDS, heartbeat_lease, heartbeat_spec
from gpushare.kube.resources import LEASES
from tests.scale import results
from tests.scale.control_plane import ControlPlane
from tests.scale.trees import trees

CRDS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions")
NAMESPACE = "gpushare-system"
MANAGER = "measurement"
ROOT = Path(__file__).resolve().parents[3]
GPUS = 8
AT_ONCE = 12
CHANGES_PER_SECOND = 10
HEARTBEAT_SECONDS = 300
QUIET_SECONDS = 10
QUIET_CPU = 0.05
SETTLE_LIMIT = 400.0
WATCHERS = ("kopf", "kopf-without-diffs", "reflector")


# What the cluster holds


def node(number: int) -> Object:
    labels = {f"example.com/label-{index}": f"value-{index}-{number % 7}" for index in range(24)}
    labels |= {"kubernetes.io/hostname": name_of(number), "kubernetes.io/os": "linux", "pool": "gpu"}
    labels |= {"topology.kubernetes.io/zone": f"zone-{number % 3}", "nvidia.com/gpu.product": "NVIDIA-H200"}
    annotations = {f"example.com/annotation-{index}": "x" * 60 for index in range(8)}
    metadata = {"name": name_of(number), "labels": labels, "annotations": annotations}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {"podCIDR": f"10.{number % 250}.0.0/24"}}


def node_status(number: int) -> Object:
    room = {"cpu": "192", "memory": "2113461524Ki", "pods": "110", "ephemeral-storage": "1770454836Ki"}
    room |= {"hugepages-1Gi": "0", "hugepages-2Mi": "0", "nvidia.com/gpu": "0"}
    image = f"registry.example.com/a-team-with-a-long-name/an-image-with-a-long-name-{number % 5}"
    images = [
        {
            "names": [f"{image}-{index}@sha256:{index:064x}", f"{image}-{index}:v1.{index}.0-with-a-suffix"],
            "sizeBytes": 10**9,
        }
        for index in range(25)
    ]
    info = dict.fromkeys(("bootID", "machineID", "systemUUID"), "f" * 36)
    info |= {"architecture": "amd64", "operatingSystem": "linux", "osImage": "Ubuntu 24.04.3 LTS"}
    info |= {"kernelVersion": "6.8.0-60-generic", "containerRuntimeVersion": "containerd://2.1.4"}
    info |= {"kubeletVersion": "v1.37.0", "kubeProxyVersion": ""}
    addresses = [{"type": "InternalIP", "address": f"10.0.{number // 250}.{number % 250}"}]
    return {
        "status": {
            "capacity": room,
            "allocatable": room,
            "images": images,
            "nodeInfo": info,
            "addresses": addresses,
            "conditions": conditions(0),
        }
    }


def conditions(moment: float) -> list[Object]:
    beat = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment))
    kinds = {"MemoryPressure": "False", "DiskPressure": "False", "PIDPressure": "False", "Ready": "True"}
    return [
        {
            "type": kind,
            "status": status,
            "reason": f"Kubelet{kind}",
            "message": f"the kubelet reports {kind}, as it does at every heartbeat",
            "lastHeartbeatTime": beat,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        for kind, status in kinds.items()
    ]


def gpu_node(number: int) -> Object:
    return {"apiVersion": names.API_VERSION, "kind": "GpuNode", "metadata": {"name": name_of(number)}}


def gpu_node_status(number: int, turn: int = 0) -> Object:
    """With one container that holds a slot, which changes with `turn`."""
    gpus = [
        {
            "uuid": uuid(number, index),
            "index": index,
            "minor": index,
            "product": "NVIDIA H200",
            "memoryMib": 143155,
            "sms": 132,
            "computeCapability": "9.0",
            "numaNode": index // 4,
            "computeMode": "Default",
        }
        for index in range(GPUS)
    ]
    holder = {"uuid": uuid(number, 0), "share": "scale", "slots": [turn % 8], "pods": [f"team/pod-{turn}"]}
    status = {
        "observedGeneration": 1,
        "driverVersion": "580.95.05",
        "cudaVersion": "13.0",
        "agentVersion": "0.1.0",
        "gpus": gpus,
        "holders": [holder] if turn else [],
    }
    return {"status": status}


def share() -> Object:
    spec = {
        "nodeSelector": {"matchLabels": {"pool": "gpu"}},
        "clients": {"perGpu": 8, "memory": {"default": "16Gi"}},
    }
    return {"apiVersion": names.API_VERSION, "kind": "GpuShare", "metadata": {"name": "scale"}, "spec": spec}


def name_of(number: int) -> str:
    return f"gpu-node-{number:05}"


def uuid(number: int, index: int) -> str:
    return f"GPU-{number:08x}-0000-0000-0000-{index:012x}"


async def fill(kube: Kube, nodes: int) -> Object:
    """Returns how large one object of each kind is as JSON, in bytes."""
    for path in sorted((ROOT / "crds").glob("*.yaml")):
        await kube.create(CRDS, yaml.safe_load(path.read_text()))
    await kube.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    await _until(lambda: _served(kube), 60.0)
    await all_of(_make(kube, number) for number in range(nodes))
    await kube.create(GPU_SHARES, share())
    return {resource.plural: len(json.dumps(await kube.get(resource, name_of(0)))) for resource in (NODES, GPU_NODES)}


async def _make(kube: Kube, number: int) -> None:
    name = name_of(number)
    await kube.create(NODES, node(number))
    await kube.patch(NODES, name, node_status(number), manager="kubelet", subresource="status")
    made = await kube.create(GPU_NODES, gpu_node(number))
    await kube.create(LEASES, heartbeat_lease(name, made, _heartbeat(number)), namespace=NAMESPACE)
    await kube.patch(GPU_NODES, name, gpu_node_status(number), manager="gpushare-agent", subresource="status")


def _heartbeat(number: int) -> Object:
    return heartbeat_spec(f"gpushare-agent-{number:05}", datetime.now(UTC))


async def renew(kube: Kube, nodes: int) -> None:
    """Every agent's heartbeat in its rhythm, spread over the period as agents do, until cancelled."""

    async def one(number: int) -> None:
        body = {"spec": _heartbeat(number)}
        await kube.patch(LEASES, name_of(number), body, manager="gpushare-agent", namespace=NAMESPACE)

    parts = max(1, min(nodes, round(RENEW_SECONDS * 10)))
    while True:
        for part in range(parts):
            began = time.monotonic()
            await all_of(one(number) for number in range(part, nodes, parts))
            await asyncio.sleep(max(0.0, RENEW_SECONDS / parts - (time.monotonic() - began)))


async def _served(kube: Kube) -> bool:
    return await kube.served(GPU_SHARES) and await kube.served(GPU_NODES)


async def _until(holds: Callable[[], Awaitable[bool]], limit: float) -> None:
    end = time.monotonic() + limit
    while not await holds():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {limit:.0f} s")
        await asyncio.sleep(0.5)


async def all_of(requests: Iterable[Awaitable[object]]) -> None:
    limit = asyncio.Semaphore(AT_ONCE)

    async def one(request: Awaitable[object]) -> None:
        async with limit:
            await request

    await asyncio.gather(*(one(request) for request in requests))


# What is measured of a process


@dataclass(frozen=True, slots=True)
class Usage:
    """From /proc/PID: MiB, and seconds of user and system time since the start. RuntimeError once it has ended."""

    resident: float
    peak: float
    cpu: float

    @classmethod
    def of(cls, pid: int) -> "Usage":
        status = dict(
            line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line
        )
        if "VmRSS" not in status:
            raise RuntimeError(f"process {pid} has ended")
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        cpu = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return cls(int(status["VmRSS"].split()[0]) / 1024, int(status["VmHWM"].split()[0]) / 1024, cpu)


async def measure(kube: Kube, pid: int, nodes: int, settled: Callable[[], Awaitable[bool]], seconds: int) -> Object:
    began = time.monotonic()
    await _until(settled, SETTLE_LIMIT)
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
    environ |= {
        "KUBECONFIG": str(plane.kubeconfig),
        "GPUSHARE_NAMESPACE": NAMESPACE,
        "GPUSHARE_POD_NAME": "operator-0",
        "GPUSHARE_IMAGE": "gpushare:scale",
        "GPUSHARE_CERTIFICATES": "CertManager",
    }
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
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    finally:
        await kube.close()


def _is_complete(log: Path) -> bool:
    return COMPLETE in log.read_text()


async def connected(plane: ControlPlane) -> Kube:
    return connect_to(await kubeconfig_access(plane.kubeconfig), MANAGER)


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


def operator_command() -> list[str]:
    return ["-m", "gpushare.cli.main", "operator", "--probe-port", "18080", "--simulation"]


async def run(args: argparse.Namespace, compared: Mapping[str, Path], scratch: Path) -> None:
    """The result is written after each repeat, so that a run that is broken off leaves those before."""
    original = ControlPlane(scratch / "cluster").create()
    with original.running():
        kube = await connected(original)
        sizes = await fill(kube, args.nodes)
        await kube.close()
    subjects = {which: (operator_command(), tree) for which, tree in compared.items()}
    for kind in WATCHERS if args.watchers else ():
        subjects[kind] = ["-m", "tests.scale.operator.watch", "--watch", kind, "--nodes", str(args.nodes)], ROOT
    found: dict[str, list[Object]] = {subject: [] for subject in subjects}
    for repeat in range(args.repeats):
        for subject, (command, tree) in subjects.items():
            copy, log = original.copy(scratch / f"{subject}-{repeat}"), scratch / f"{subject}-{repeat}.log"
            try:
                with copy.running():
                    one = await measured(copy, command, tree, args.nodes, args.seconds, log)
            except (RuntimeError, TimeoutError) as error:
                print(f"{subject} {repeat + 1}/{args.repeats} left out: {error}", file=sys.stderr, flush=True)
                continue
            found[subject].append(one)
            print(f"{subject} {repeat + 1}/{args.repeats}: {json.dumps(one)}", file=sys.stderr, flush=True)
        _write(args.out, result(found, sizes, environment(args)))


def result(found: dict[str, list[Object]], sizes: Object, measured_on: Object) -> Object:
    return {
        "what": "python -m tests.scale.operator.watch; MiB and CPU seconds of one process, see its documentation",
        "environment": measured_on,
        "objectBytes": sizes,
        "operator": {subject: summary(found[subject]) for subject in ("before", "after") if found.get(subject)},
        "watch": {subject: summary(found[subject]) for subject in WATCHERS if found.get(subject)},
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


def _write(out: Path | None, found: Object) -> None:
    """JSON, with the runs of one figure on one line."""
    text = json.dumps(found, indent=2)
    results.write_text(re.sub(r"\[\s+([^][{}]*?)\s+\]", lambda runs: f"[{' '.join(runs[1].split())}]", text), out)


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
