"""The webhook of a checkout in a process of its own, with a certificate and a share from memory."""

import asyncio
import base64
import json
import os
import resource
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from gpushare.controller.webhook_certificates.authority import BUNDLE, dns_names, renewed_authority, renewed_serving
from localcluster.paths import REPOSITORY
from tests.cluster.control_plane import stop

NAMES = dns_names("gpushare-webhook", "gpushare-system")
SHARE = {"metadata": {"name": "inference"}, "spec": {"clients": {"perGpu": 8, "memory": {"default": "8Gi"}}}}
START_SECONDS = 20.0


@dataclass(frozen=True)
class Server:
    """`authority`: the certificate of who signed the webhook's, as PEM."""

    pid: int
    port: int
    authority: bytes

    @property
    def tls(self) -> ssl.SSLContext:
        """The TLS context of a client that trusts the server."""
        return ssl.create_default_context(cadata=self.authority.decode())


@contextmanager
def served(checkout: Path, names: Sequence[str], descriptors: int | None = None) -> Iterator[Server]:
    """Listens once the block begins. `names`: in its certificate; `descriptors`: it may have so many."""
    now = datetime.now(UTC)
    authority = renewed_authority({}, {}, now)
    assert authority is not None
    chain = renewed_serving({}, authority, names, now)
    assert chain is not None
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]

    def limit() -> None:
        if descriptors is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))

    command = [sys.executable, "-m", "measurements.scale.webhook.server", str(port)]
    environment = {**os.environ, "PYTHONPATH": f"{checkout}/operator:{checkout}/workload:{REPOSITORY}"}
    server = subprocess.Popen(command, stdin=subprocess.PIPE, cwd=REPOSITORY, env=environment, preexec_fn=limit)
    try:
        assert server.stdin is not None
        server.stdin.write(json.dumps({key: base64.b64encode(pem).decode() for key, pem in chain.items()}).encode())
        server.stdin.close()
        _wait(port)
        yield Server(server.pid, port, chain[BUNDLE])
    finally:
        stop(server)


def _wait(port: int) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise TimeoutError(f"the webhook did not begin to listen within {START_SECONDS:.0f} s")


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

    async def silence(self, _: str) -> str:
        return ""

    async def namespace_labels(self, _: str) -> dict[str, str]:
        return {}


async def serve_webhook(port: int, secret: dict[str, str]) -> None:
    """Serves until SIGTERM the webhook of whatever checkout is on the path."""
    from prometheus_client import CollectorRegistry

    from gpushare.http.server import serve
    from gpushare.webhook.metrics import AdmissionMeters

    try:
        package = import_module("gpushare.webhook.serving.server").__package__
    except ImportError:  # before the server had a package of its own
        package = "gpushare.webhook"
    app, certificate, server = (import_module(f"{package}.{name}") for name in ("app", "certificate", "server"))
    live = certificate.LiveCertificate()
    live.load(secret)
    made = app.create_app(MemorySources(), "gpushare-system", AdmissionMeters(CollectorRegistry()))
    async with serve(made, port, tls=live.context, limits=server.LIMITS):
        await asyncio.Event().wait()


if __name__ == "__main__":
    try:
        run = import_module("gpushare.process.event_loop").run
    except ImportError:  # before the parts had a loop of their own
        run = asyncio.run
    run(serve_webhook(int(sys.argv[1]), json.load(sys.stdin)))
