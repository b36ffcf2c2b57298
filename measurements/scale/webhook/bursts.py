"""Bursts of slot pods through a real API server: is any refused, and what does the webhook add?

    python -m measurements.scale.webhook.bursts --out measurements/results/scale/webhook-bursts.json

etcd, kube-apiserver and the webhook (`measurements.scale.webhook.server`) are real processes. Every PERIOD seconds
COUNT pods with a slot are created at once, and as many pods without one, which no webhook is asked about (`plain`), in
turns. With `--against` the webhook of another checkout serves beside this one, each asked about pods of its own by the
same API server. Between two bursts nothing is asked, so connections lie idle: a server that closes them sooner than the
API server expects refuses pods with EOF or a broken pipe. `failurePolicy` is Fail.
"""

import argparse
import asyncio
import base64
import re
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

from gpushare.kube.client import API_ERRORS, MUTATING_WEBHOOKS, NAMESPACES, PODS, Kube, Object, Resource
from localcluster.paths import REPOSITORY
from measurements.scale import results
from measurements.scale.webhook.server import served
from tests.cluster.control_plane import ControlPlane, connected

HOST = "localhost"
SPACE = "shop"
SLOT = "gpushare.dev/inference"
KIND, PLAIN = "kind", "plain"
WARM = 2
"""Bursts before those that are counted."""
Configurations = Callable[[str, int, bytes], Iterable[tuple[Resource, Object]]]
"""What makes an API server ask a webhook about the pods of a kind, by kind, port and the certificate's authority."""


def pod(name: str, kind: str) -> Object:
    resources = {} if kind == PLAIN else {"limits": {SLOT: "1"}}
    container = {"name": "app", "image": "registry.example/app", "resources": resources}
    return {
        "metadata": {"name": name, "namespace": SPACE, "labels": {KIND: kind}},
        "spec": {
            "containers": [container],
            "terminationGracePeriodSeconds": 30,
            "securityContext": {"runAsUser": 1000},
        },
    }


def configurations(kind: str, port: int, authority: bytes) -> list[tuple[Resource, Object]]:
    configuration = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": kind},
        "webhooks": [
            {
                "name": f"{kind}.gpushare.dev",
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                "failurePolicy": "Fail",
                "timeoutSeconds": 10,
                "clientConfig": {
                    "url": f"https://{HOST}:{port}/mutate-pods",
                    "caBundle": base64.b64encode(authority).decode(),
                },
                "objectSelector": {"matchLabels": {KIND: kind}},
                "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}],
            }
        ],
    }
    return [(MUTATING_WEBHOOKS, configuration)]


def why(error: Exception) -> str:
    """Why a pod was refused, without what differs from pod to pod."""
    return re.sub(r"\d+", "N", str(error) or type(error).__name__)


async def create(kube: Kube, name: str, kind: str) -> float | str:
    """Seconds, or why it was refused."""
    began = time.monotonic()
    try:
        made = await kube.create(PODS, pod(name, kind), SPACE)
    except API_ERRORS as error:
        return why(error)
    if kind != PLAIN and not made["spec"]["containers"][0].get("env"):
        return "the webhook was not asked"
    return time.monotonic() - began


async def bursts(kube: Kube, kinds: list[str], number: int, count: int, period: float) -> Object:
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    refusals: dict[str, dict[str, int]] = {kind: {} for kind in kinds}
    for turn in range(number + WARM):
        for kind in kinds:
            began = time.monotonic()
            names = (f"{kind}-{period:g}-{turn}-{index}" for index in range(count))
            answers = await asyncio.gather(*(create(kube, name, kind) for name in names))
            for answer in answers if turn >= WARM else ():
                if isinstance(answer, str):
                    refusals[kind][answer] = refusals[kind].get(answer, 0) + 1
                else:
                    seconds[kind].append(answer)
            await asyncio.sleep(max(0.0, period / len(kinds) - (time.monotonic() - began)))
    return {
        "load": results.load(),
        **{
            kind: {
                "pods": number * count,
                "refused": sum(refusals[kind].values()),
                "refusals": refusals[kind],
                "milliseconds": quantiles(seconds[kind]),
            }
            for kind in kinds
        },
    }


def quantiles(seconds: list[float]) -> Object:
    """Quantiles in milliseconds; empty without any time."""
    ordered = sorted(seconds)
    if not ordered:
        return {}
    return {
        "p50": round(statistics.median(ordered) * 1000, 1),
        "p99": round(ordered[int(len(ordered) * 0.99)] * 1000, 1),
        "max": round(ordered[-1] * 1000, 1),
    }


@asynccontextmanager
async def asked(
    checkouts: Mapping[str, Path], scratch: Path, configured: Configurations = configurations
) -> AsyncIterator[ControlPlane]:
    """A real API server with a namespace for pods, which asks each checkout's webhook about those of its kind."""
    plane = ControlPlane(scratch / "cluster").create()
    with ExitStack() as stack:
        stack.enter_context(plane.running())
        servers = {kind: stack.enter_context(served(checkout, (HOST,))) for kind, checkout in checkouts.items()}
        kube = await connected(plane)
        try:
            await kube.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}})
            for kind, server in servers.items():
                for resource, configuration in configured(kind, server.port, server.authority):
                    await kube.create(resource, configuration)
        finally:
            await kube.close()
        await asyncio.sleep(3)  # the API server reads webhook configurations by a watch
        yield plane


async def run(args: argparse.Namespace, scratch: Path) -> Object:
    checkouts = {"here": REPOSITORY, **({"against": args.against.resolve()} if args.against else {})}
    async with asked(checkouts, scratch) as plane:
        kube = await connected(plane)
        try:
            kinds = [*checkouts, PLAIN]
            figures = [await bursts(kube, kinds, args.bursts, args.count, period) for period in args.periods]
        finally:
            await kube.close()
    return {
        "what": "python -m measurements.scale.webhook.bursts; see its documentation",
        "environment": results.machine(),
        "bursts": args.bursts,
        "podsPerBurst": args.count,
        "byPeriodSeconds": {f"{period:g}": figure for period, figure in zip(args.periods, figures, strict=True)},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bursts", type=int, default=12)
    parser.add_argument("--count", type=int, default=40, help="pods of each kind in a burst")
    parser.add_argument("--periods", type=float, nargs="+", default=[5.0], help="seconds from burst to burst")
    parser.add_argument("--against", type=Path, help="another checkout, whose webhook serves beside this one")
    results.add_out(parser)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gpushare-bursts-") as scratch:
        result = asyncio.run(run(args, Path(scratch)))
    results.write(result, args.out)


if __name__ == "__main__":
    main()
