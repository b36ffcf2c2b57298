"""What pods that only name a node cost its agent: memory, and whether it survives.

    python -m measurements.scale.agent.memory --before 2bc09cf --out measurements/results/scale/agent-memory.json

Starts etcd and kube-apiserver on loopback ports in a scratch directory and fills them once: one Node, and pods that
name it in their spec, as everybody may who may create pods. None of them runs. `--pods` of them ask for a slot and
have some 7 kB; `--large` of them have 250,000 readiness gates, 6 MB as JSON and about the most that etcd takes. Every
measurement begins from a copy of that state, with one process that is measured: `gpushare agent` of this work tree,
and of the commit `--before` from a git worktree of its own. It runs as in a pod, so the script
needs root. It has no kubelet and no driver, which it survives. Once
it has read the pods, each of the large ones is changed, one after the other.

Figures are from /proc/PID: VmRSS at the end, VmHWM, user and system time.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import aiohttp
import yaml

from gpushare.kube.client import NAMESPACES, NODES, PODS, Kube, Object
from localcluster.paths import REPOSITORY
from measurements.scale import results
from measurements.scale.nodes import CRDS, all_of
from measurements.scale.trees import trees
from measurements.scale.usage import Usage
from tests.cluster.control_plane import ControlPlane, connected

NODE = "n"
NAMESPACE = "team"
GATES = 250_000
LIST_SECONDS = 45.0
CHANGE_SECONDS = 20.0
LIMIT_MIB = 512
"""The chart's memory limit for the agent's container."""


def pod(name: str) -> Object:
    container = {
        "name": "app",
        "image": "registry.example.com/a-team/an-image:v1",
        "env": [{"name": f"VARIABLE_{number}", "value": "x" * 40} for number in range(30)],
        "resources": {"limits": {"gpushare.dev/a": "1"}},
    }
    labels = {f"example.com/label-{number}": "x" * 40 for number in range(10)}
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {"nodeName": NODE, "containers": [container], "automountServiceAccountToken": False},
    }


def large_pod(name: str) -> bytes:
    """A pod in protobuf, of which a request of 3 MiB holds more than of JSON."""
    container = _field(1, b"app") + _field(2, b"image")
    gates = _field(28, _field(1, b"a")) * GATES
    spec = _field(2, container) + _field(10, NODE.encode()) + _varint(21 << 3) + b"\0" + gates
    raw = _field(1, _field(1, name.encode()) + _field(3, NAMESPACE.encode())) + _field(2, spec)
    return b"k8s\0" + _field(1, _field(1, b"v1") + _field(2, b"Pod")) + _field(2, raw)


def _field(number: int, content: bytes) -> bytes:
    """A field of bytes."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    low = bytes([number & 0x7F | (0x80 if number > 0x7F else 0)])
    return low + _varint(number >> 7) if number > 0x7F else low


async def create_large(plane: ControlPlane, names: Iterable[str]) -> None:
    config = yaml.safe_load(plane.kubeconfig.read_text())
    server, token = config["clusters"][0]["cluster"]["server"], config["users"][0]["user"]["token"]
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/vnd.kubernetes.protobuf"}
    async with aiohttp.ClientSession(headers=headers) as session:
        for name in names:
            async with session.post(f"{server}{PODS.path(NAMESPACE)}", data=large_pod(name), ssl=False) as answer:
                if answer.status >= 400:
                    raise RuntimeError(f"{name} was refused: {(await answer.text())[:500]}")


async def fill(plane: ControlPlane, kube: Kube, pods: int, large: int) -> Object:
    """Returns how large one pod of each sort is as JSON, in bytes."""
    for path in sorted((REPOSITORY / "crds").glob("*.yaml")):
        await kube.create(CRDS, yaml.safe_load(path.read_text()))
    await kube.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
    await kube.create(NODES, {"metadata": {"name": NODE}})
    runtime = {"status": {"nodeInfo": {"containerRuntimeVersion": "containerd://2.1.4"}}}
    await kube.patch(NODES, NODE, runtime, manager="kubelet", subresource="status")
    await all_of(kube.create(PODS, pod(f"junk-{number}"), NAMESPACE) for number in range(pods))
    await create_large(plane, (f"large-{number}" for number in range(large)))
    names = (*(["junk-0"] if pods else []), *(["large-0"] if large else []))
    return {name: len(json.dumps(await kube.get(PODS, name, NAMESPACE))) for name in names}


async def measured(plane: ControlPlane, python: Path, tree: Path, large: int, scratch: Path, log: Path) -> Object:
    folders = {name: scratch / name for name in ("root", "kubelet-dir", "cdi-dir")}
    for folder in folders.values():
        folder.mkdir(exist_ok=True)
    places = [f"--{name}={folder}" for name, folder in folders.items()]
    command = ["-m", "gpushare.cli.main", "agent", f"--node={NODE}", "--simulation", "--probe-port=18082", *places]
    command, environ = plane.as_in_a_pod(python, tree, command)
    kube = await connected(plane)
    with log.open("ab") as output:
        process = subprocess.Popen(command, cwd=tree, env=environ, stdout=output, stderr=output)  # noqa: ASYNC220
    began, last = time.monotonic(), Usage.of(process.pid)
    changed = False
    try:
        while process.poll() is None and time.monotonic() - began < LIST_SECONDS + CHANGE_SECONDS:
            if not changed and time.monotonic() - began > LIST_SECONDS:
                changed = True
                for number in range(large):
                    body = {"metadata": {"labels": {"changed": "true"}}}
                    await kube.patch(PODS, f"large-{number}", body, manager="measurement", namespace=NAMESPACE)
            try:
                last = Usage.of(process.pid)
            except (RuntimeError, OSError):
                break
            await asyncio.sleep(0.2)
        ended = process.poll()
    finally:
        await kube.close()
        if process.poll() is None:
            process.kill()
        process.wait()
    return {
        "endedByItself": ended is not None,
        "residentMib": round(last.resident, 1),
        "peakMib": round(last.peak, 1),
        "cpuSeconds": round(last.cpu, 1),
        "peakIsWithinTheLimit": last.peak < LIMIT_MIB,
    }


async def run(args: argparse.Namespace, compared: Mapping[str, Path], scratch: Path) -> Object:
    original = ControlPlane(scratch / "cluster").create()
    with original.running():
        kube = await connected(original)
        sizes = await fill(original, kube, args.pods, args.large)
        await kube.close()
    pythons = {"after": args.python, "before": args.before_python or args.python}
    figures = {}
    for subject, tree in compared.items():
        copy, own = original.copy(scratch / f"cluster-{subject}"), scratch / f"files-{subject}"
        own.mkdir()
        with copy.running():
            figures[subject] = await measured(copy, pythons[subject], tree, args.large, own, scratch / f"{subject}.log")
        print(f"{subject}: {json.dumps(figures[subject])}", file=sys.stderr, flush=True)
        print((scratch / f"{subject}.log").read_text()[-1500:], file=sys.stderr, flush=True)
    return {
        "what": "python -m measurements.scale.agent.memory; MiB and CPU seconds of one agent, see its documentation",
        "environment": environment(args),
        "podBytes": sizes,
        "limitMib": LIMIT_MIB,
        "agent": figures,
    }


def environment(args: argparse.Namespace) -> Object:
    return {
        "pods": args.pods,
        "large": args.large,
        "before": args.before,
        "cpu": results.processor(),
        **results.machine(),
        "kubernetes": "1.37.0",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pods", type=int, default=10_000)
    parser.add_argument("--large", type=int, default=12)
    parser.add_argument("--before", default="", help="a commit to compare with")
    results.add_pythons(parser)
    results.add_out(parser)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, trees(args.before, Path(scratch)) as compared:
        result = asyncio.run(run(args, compared, Path(scratch)))
    results.write(result, args.out)


if __name__ == "__main__":
    main()
