"""What pods and claims that are nobody's of ours cost the operator: memory and CPU.

    python -m measurements.scale.operator.memory --out measurements/results/scale/operator-memory.json

Starts etcd and kube-apiserver on loopback ports in a scratch directory, with Nodes of 8 GPUs, one GpuShare that has
them all and another that is delivered by ResourceClaim, so that the operator follows claims too. Every measurement
begins from a copy of that state, with `gpushare operator` of this work tree: `quiet`, with nothing else; `junk`, with
`--pods` pods that nobody of ours cares for and `--claims` ResourceClaims for other devices; and `ownClaims`, with as
many claims for the share's own DeviceClass, all of which wait. They are written to etcd, many at a time, as the API
server would write them, and it is the API server that says how many it has. While the operator is measured,
`--changes` of them are changed a second. Settled, changed and read as in `measurements.scale.operator.watch`.
"""

import argparse
import asyncio
import base64
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import aiohttp

from gpushare.api import names
from gpushare.kube.client import GPU_SHARES, NAMESPACES, PODS, Kube, Object
from gpushare.kube.resources import DEVICE_CLASSES, RESOURCE_CLAIMS
from localcluster.paths import REPOSITORY
from measurements.scale import results
from measurements.scale.nodes import fill, operator_command
from measurements.scale.operator.watch import environment, measured
from tests.cluster.control_plane import ControlPlane, connected

NAMESPACE = "team"
CLAIMED = "claimed"
IN_ONE_WRITE = 100
"""etcd takes 128 operations in a transaction."""
LIMIT_MIB = 1024
"""The chart's memory limit for the operator's container."""


def metadata(name: str, number: int) -> Object:
    return {
        "name": name,
        "namespace": NAMESPACE,
        "uid": f"00000000-0000-0000-0000-{number:012}",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "labels": {f"example.com/label-{index}": "x" * 40 for index in range(5)},
    }


def junk(pods: int, claims: int, device_class: str) -> Iterator[tuple[str, Object]]:
    """(key in etcd, object). The pods ask for a slot and wait. `device_class`: what the claims ask for."""
    for number in range(pods):
        container = {"name": "app", "image": "an-image", "resources": {"limits": {"gpushare.dev/scale": "1"}}}
        yield (
            f"/registry/pods/{NAMESPACE}/junk-{number}",
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": metadata(f"junk-{number}", number),
                "spec": {"containers": [container], "restartPolicy": "Always", "schedulerName": "nobody"},
                "status": {"phase": "Pending"},
            },
        )
    for number in range(claims):
        request = {"name": "a", "exactly": {"deviceClassName": device_class, "count": 1}}
        yield (
            f"/registry/resourceclaims/{NAMESPACE}/junk-{number}",
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": metadata(f"junk-{number}", number),
                "spec": {"devices": {"requests": [request]}},
            },
        )


async def write(plane: ControlPlane, pods: int, claims: int, device_class: str) -> None:
    """Writes the objects. Before the API server has started to watch etcd there is no better time, but later does as
    well."""
    async with aiohttp.ClientSession() as session:
        objects = junk(pods, claims, device_class)
        while some := list(islice(objects, IN_ONE_WRITE)):
            puts = [{"requestPut": {"key": _coded(key), "value": _coded(json.dumps(obj))}} for key, obj in some]
            async with session.post(f"{plane.etcd}/v3/kv/txn", json={"success": puts}) as answer:
                if answer.status >= 400 or not (await answer.json()).get("succeeded"):
                    raise RuntimeError(f"etcd refused: {(await answer.text())[:500]}")


def _coded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


async def counted(kube: Kube) -> Object:
    """How many of each the API server has in the namespace."""
    counts = {}
    for resource in (PODS, RESOURCE_CLAIMS):
        answer = await kube.list_all(resource, NAMESPACE, limit="1")
        counts[resource.plural] = len(answer["items"]) + int(answer["metadata"].get("remainingItemCount") or 0)
    return counts


def claims_share() -> Object:
    spec = {
        "delivery": "ResourceClaim",
        "nodeSelector": {"matchLabels": {"pool": "none"}},
        "clients": {"perGpu": 8, "memory": {"default": "16Gi"}},
    }
    return {"apiVersion": names.API_VERSION, "kind": "GpuShare", "metadata": {"name": CLAIMED}, "spec": spec}


async def change(kube: Kube, pods: int, claims: int, per_second: int) -> None:
    """Changes objects until it is cancelled."""
    began, done = time.monotonic(), 0
    kinds = [(resource, most) for resource, most in ((PODS, pods), (RESOURCE_CLAIMS, claims)) if most]
    while kinds:
        while done < (time.monotonic() - began) * per_second:
            resource, most = kinds[done % len(kinds)]
            body = {"metadata": {"labels": {"changed": str(done)}}}
            name = f"junk-{done % most}"
            await kube.patch(resource, name, body, manager="measurement", namespace=NAMESPACE)
            done += 1
        await asyncio.sleep(0.02)


async def run_once(plane: ControlPlane, args: argparse.Namespace, subject: str, log: Path) -> Object:
    pods, claims, device_class = {
        "quiet": (0, 0, ""),
        "junk": (args.pods, args.claims, "another.example.com"),
        "ownClaims": (0, args.claims, names.device_class(CLAIMED)),
    }[subject]
    with plane.running():
        await write(plane, pods, claims, device_class)
        kube = await connected(plane)
        try:
            changing = asyncio.create_task(change(kube, pods, claims, args.changes))
            try:
                has = await counted(kube)
                command = operator_command()
                figures = await measured(plane, command, REPOSITORY, args.nodes, args.seconds, log, args.python)
                await kube.get(DEVICE_CLASSES, names.device_class(CLAIMED))  # the operator follows claims
            finally:
                changing.cancel()
                [ended] = await asyncio.gather(changing, return_exceptions=True)
            if not isinstance(ended, asyncio.CancelledError) and ended is not None:
                raise ended
        finally:
            await kube.close()
    return {"has": has, **figures, "peakIsWithinTheLimit": figures["peakMib"] < LIMIT_MIB}


async def run(args: argparse.Namespace, scratch: Path) -> None:
    original = ControlPlane(scratch / "cluster").create()
    with original.running():
        kube = await connected(original)
        await fill(kube, args.nodes)
        await kube.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        await kube.create(GPU_SHARES, claims_share())
        await kube.close()
    runs_by_subject: dict[str, list[Object]] = {subject: [] for subject in args.subjects}
    for repeat in range(args.repeats):
        for subject, runs in runs_by_subject.items():
            copy = original.copy(scratch / f"{subject}-{repeat}")
            try:
                runs.append(await run_once(copy, args, subject, scratch / f"{subject}-{repeat}.log"))
            except (RuntimeError, TimeoutError) as error:  # of the machine, where much else runs on it
                print(f"{subject} {repeat + 1}/{args.repeats} left out: {error}", file=sys.stderr, flush=True)
                continue
            print(f"{subject} {repeat + 1}/{args.repeats}: {json.dumps(runs[-1])}", file=sys.stderr, flush=True)
        result = {
            "what": "python -m measurements.scale.operator.memory; MiB and CPU seconds of one operator, see there",
            "environment": environment(args) | {"changesOfJunkPerSecond": args.changes},
            "limitMib": LIMIT_MIB,
            "operator": runs_by_subject,
        }
        if args.out:
            results.write(result, args.out)
    results.write(result, None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pods", type=int, default=100_000)
    parser.add_argument("--claims", type=int, default=20_000)
    parser.add_argument("--nodes", type=int, default=20)
    parser.add_argument("--changes", type=int, default=20)
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--subjects", nargs="+", default=["quiet", "junk", "ownClaims"])
    parser.add_argument("--out", type=Path, help="where the figures go as JSON, too")
    results.add_pythons(parser)
    parser.set_defaults(before="")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        asyncio.run(run(args, Path(scratch)))


if __name__ == "__main__":
    main()
