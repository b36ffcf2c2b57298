"""How many pod reviews the webhook answers.

    python -m measurements.scale.webhook.paired [--against DIRECTORY] [--out FILE]

A real webhook in a process of its own, with a certificate and a share from memory, is asked over TLS by 50 connections
that are kept alive, each with one review at a time, for 10 s. `--against`: a checkout whose webhook is asked in turns
with this one's, each as often as `--rounds` says. Reviews per second depend on what else the machine does, and the
client takes its part of it; the server's CPU time for a review does not.
"""

import argparse
import asyncio
import json
import ssl
import statistics
import time
from pathlib import Path
from typing import Any

from localcluster.paths import REPOSITORY
from measurements.scale import results
from measurements.scale.usage import Usage
from measurements.scale.webhook.server import NAMES, served


def pod() -> dict[str, Any]:
    """A pod as an API server sends it: defaults filled in, managed fields and a service account's volume."""
    mount = {"name": "token", "readOnly": True, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}
    container = {
        "name": "app",
        "image": "registry.example/inference:1.0",
        "env": [{"name": f"SETTING_{number}", "value": "value" * 4} for number in range(20)],
        "resources": {"limits": {"gpushare.dev/inference": "1"}, "requests": {"gpushare.dev/inference": "1"}},
        "volumeMounts": [mount],
        "terminationMessagePath": "/dev/termination-log",
        "imagePullPolicy": "IfNotPresent",
    }
    fields: dict[str, Any] = {f"f:field-{number}": {".": {}, "f:name": {}, "f:value": {}} for number in range(40)}
    managed = {"manager": "kube-controller-manager", "operation": "Update", "fieldsV1": fields}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "app-1", "namespace": "shop", "labels": {"app": "app"}, "managedFields": [managed]},
        "spec": {
            "containers": [container],
            "volumes": [{"name": "token", "projected": {"defaultMode": 420}}],
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 30,
            "serviceAccountName": "default",
        },
    }


def review() -> bytes:
    request = {"uid": "u-1", "kind": {"kind": "Pod"}, "namespace": "shop", "operation": "CREATE", "object": pod()}
    return json.dumps(
        {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request, "response": None}
    ).encode()


async def ask(port: int, tls: ssl.SSLContext, until: float, request: bytes, seconds: list[float]) -> None:
    """One connection: a review, its answer, the next one."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls, server_hostname=NAMES[0])
    while (began := time.monotonic()) < until:
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        body = await reader.readexactly(int(head.partition(b"content-length:")[2].split()[0]))
        seconds.append(time.monotonic() - began)
        if not head.startswith(b"http/1.1 200") or b'"patch"' not in body:
            raise RuntimeError(f"not admitted with a patch: {head!r} {body[:200]!r}")
    writer.close()


async def load(port: int, tls: ssl.SSLContext, connections: int, seconds: float) -> list[float]:
    body = review()
    head = f"POST /mutate-pods HTTP/1.1\r\nHost: {NAMES[0]}\r\nContent-Type: application/json\r\n"
    request = f"{head}Accept-Encoding: gzip\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    times: list[float] = []
    until = time.monotonic() + seconds
    await asyncio.gather(*(ask(port, tls, until, request, times) for _ in range(connections)))
    return times


def measure(checkout: Path, connections: int, seconds: float) -> dict[str, float]:
    """One server process, asked for `seconds`."""
    with served(checkout, NAMES) as server:
        asyncio.run(load(server.port, server.tls, connections, 1.0))  # warm
        spent = Usage.of(server.pid).cpu
        times = sorted(asyncio.run(load(server.port, server.tls, connections, seconds)))
        spent = Usage.of(server.pid).cpu - spent
    return {
        "reviewsPerSecond": round(len(times) / seconds, 1),
        "p50Milliseconds": round(times[len(times) // 2] * 1000, 2),
        "p99Milliseconds": round(times[int(len(times) * 0.99)] * 1000, 2),
        "cpuMillisecondsPerReview": round(spent / len(times) * 1000, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", type=Path, help="another checkout, whose webhook is asked in turns with this one")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--connections", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=10.0)
    results.add_out(parser)
    args = parser.parse_args()
    checkouts = {"here": REPOSITORY} | ({"against": args.against.resolve()} if args.against else {})
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in checkouts}
    for number in range(args.rounds):
        for name, checkout in checkouts.items():
            rounds[name].append(measure(checkout, args.connections, args.seconds))
            print(number, name, rounds[name][-1], flush=True)
    medians = {
        name: {key: statistics.median(figures[key] for figures in runs) for key in runs[0]}
        for name, runs in rounds.items()
    }
    result = {
        "connections": args.connections,
        "seconds": args.seconds,
        "reviewBytes": len(review()),
        "environment": results.machine(),
        "median": medians,
        "rounds": rounds,
    }
    results.write(result, args.out)


if __name__ == "__main__":
    main()
