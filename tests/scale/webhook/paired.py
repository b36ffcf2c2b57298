"""How many pod reviews the webhook answers: `python -m tests.scale.webhook.paired [--against DIRECTORY] [--out FILE]`.

A real webhook in a process of its own, with a certificate and a share from memory, is asked over TLS by 50 connections
that are kept alive, each with one review at a time, for 10 s. `--against`: a checkout whose webhook is asked in turns
with this one's, each as often as `--rounds` says. Reviews per second depend on what else the machine does, and the
client takes its part of it; the server's CPU time for a review does not.
"""

import argparse
import asyncio
import base64
import json
import os
import signal
import socket
import ssl
import statistics
import subprocess
import sys
import time
from collections.abc import Collection
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from cryptography import x509

from gpushare.controller.webhook_certificates.authority import BUNDLE, dns_names, renewed_authority, renewed_serving
from tests.scale import results

ROOT = Path(__file__).parents[3]
NAMES = dns_names("gpushare-webhook", "gpushare-system")
SHARE = {"metadata": {"name": "inference"}, "spec": {"clients": {"perGpu": 8, "memory": {"default": "8Gi"}}}}


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
    fields = {f"f:field-{number}": {".": {}, "f:name": {}, "f:value": {}} for number in range(40)}
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


class MemorySources:
    def __init__(self) -> None:
        from gpushare.api.gpushare import GpuShare

        self._share = GpuShare.model_validate(SHARE)

    async def shares(self, names: Collection[str]) -> dict[str, Any]:
        return {name: self._share for name in names if name == self._share.name}

    def share_names(self) -> list[str]:
        return [self._share.name]

    async def claims(self, *_: Any) -> dict[str, Any]:
        return {}

    async def namespace_labels(self, _: str) -> dict[str, str]:
        return {}


async def serve_webhook(port: int, secret: dict[str, str]) -> None:
    """Until SIGTERM, with the webhook of whatever checkout is on the path."""
    from prometheus_client import CollectorRegistry

    from gpushare.admission.metrics import AdmissionMeters
    from gpushare.http.server import serve

    try:
        package = import_module("gpushare.admission.serving.server").__package__
    except ImportError:  # before the server had a package of its own
        package = "gpushare.admission"
    app, certificate, server = (import_module(f"{package}.{name}") for name in ("app", "certificate", "server"))
    live = certificate.LiveCertificate()
    live.load(secret)
    made = app.create_app(MemorySources(), "gpushare-system", AdmissionMeters(CollectorRegistry()))
    async with serve(made, port, tls=live.context, limits=server.LIMITS):
        await asyncio.Event().wait()


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
    found: list[float] = []
    until = time.monotonic() + seconds
    await asyncio.gather(*(ask(port, tls, until, request, found) for _ in range(connections)))
    return found


def measure(checkout: Path, connections: int, seconds: float) -> dict[str, float]:
    """One server process, asked for `seconds`."""
    now = datetime.now(UTC)
    authority = renewed_authority({}, {}, now)
    assert authority is not None
    chain = renewed_serving({}, authority, NAMES, now)
    assert chain is not None
    assert x509.load_pem_x509_certificate(chain["tls.crt"])
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    secret = {key: base64.b64encode(value).decode() for key, value in chain.items()}
    environment = os.environ | {"PYTHONPATH": f"{checkout}/operator:{checkout}/workload"}
    command = [sys.executable, "-m", "tests.scale.webhook.paired", "--serve", str(port)]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment, cwd=ROOT)
    try:
        assert server.stdin is not None
        server.stdin.write(json.dumps(secret).encode())
        server.stdin.close()
        _wait(port)
        tls = ssl.create_default_context(cadata=chain[BUNDLE].decode())
        asyncio.run(load(port, tls, connections, 1.0))  # warm
        spent = _cpu_seconds(server.pid)
        found = sorted(asyncio.run(load(port, tls, connections, seconds)))
        spent = _cpu_seconds(server.pid) - spent
    finally:
        server.send_signal(signal.SIGKILL)
        server.wait()
    return {
        "reviewsPerSecond": round(len(found) / seconds, 1),
        "p50Milliseconds": round(found[len(found) // 2] * 1000, 2),
        "p99Milliseconds": round(found[int(len(found) * 0.99)] * 1000, 2),
        "cpuMillisecondsPerReview": round(spent / len(found) * 1000, 3),
    }


def _wait(port: int) -> None:
    for _ in range(200):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise TimeoutError("the webhook did not begin to listen")


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", type=Path, help="another checkout, whose webhook is asked in turns with this one")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--connections", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=10.0)
    results.add_out(parser)
    parser.add_argument("--serve", type=int, metavar="PORT", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        asyncio.run(serve_webhook(args.serve, json.load(sys.stdin)))
        return
    checkouts = {"here": ROOT} | ({"against": args.against.resolve()} if args.against else {})
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in checkouts}
    for number in range(args.rounds):
        for name, checkout in checkouts.items():
            rounds[name].append(measure(checkout, args.connections, args.seconds))
            print(number, name, rounds[name][-1], flush=True)
    medians = {
        name: {key: statistics.median(one[key] for one in found) for key in found[0]} for name, found in rounds.items()
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
