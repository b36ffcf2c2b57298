"""Runs the webhook: watches, the TLS server and the probes, until told to stop.

On SIGTERM it says at once that it is not ready and serves on until the Service's endpoints have forgotten it, so that
a rolling update loses no review.
"""

import asyncio
import contextlib
import logging
import signal
from collections.abc import Iterator
from dataclasses import dataclass

import uvicorn
from starlette.applications import Starlette

from gpushare.admission.app import create_app, create_probes
from gpushare.admission.certificate import CertificateSource, LiveCertificate
from gpushare.admission.metrics import export
from gpushare.admission.sources import ClusterSources
from gpushare.kube.client import Kube
from gpushare.metrics.endpoint import exposed

LOG = logging.getLogger(__name__)

LEAVE_SECONDS = 5.0
"""How long endpoints may take to forget a pod that is not ready."""
LAST_REQUESTS_SECONDS = 10
CONCURRENT_REQUESTS = 512


@dataclass(frozen=True, slots=True)
class WebhookSettings:
    namespace: str
    secret: str
    port: int
    probe_port: int
    metrics_port: int
    """0: no metrics."""


async def serve(kube: Kube, settings: WebhookSettings) -> None:
    """Until SIGTERM or SIGINT. An exception of any part ends all of it: Kubernetes starts it again."""
    sources = ClusterSources(kube)
    certificates = CertificateSource(kube, settings.namespace, settings.secret)
    exported, meters = export(lambda: certificates.certificate.not_after)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)

    def ready() -> bool:
        return sources.synced and certificates.certificate.loaded and not stop.is_set()

    servers = [
        https_server(create_app(sources, settings.namespace, meters), certificates.certificate, settings.port),
        _server(create_probes(ready), settings.probe_port),
    ]
    async with exposed(settings.metrics_port, exported), asyncio.TaskGroup() as tasks:
        watches = [tasks.create_task(sources.run()), tasks.create_task(certificates.run())]
        serving = [tasks.create_task(server.serve()) for server in servers]
        await _first(stop, serving)
        await asyncio.sleep(LEAVE_SECONDS)
        for server in servers:
            server.should_exit = True
        await asyncio.wait(serving)
        for watch in watches:
            watch.cancel()


def https_server(app: Starlette, certificate: LiveCertificate, port: int) -> uvicorn.Server:
    """A server whose handshakes use whatever chain `certificate` holds at that moment."""
    return _server(app, port, certificate)


class _Server(uvicorn.Server):
    """Two of them share one process, so signals are the process' own matter."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _server(app: Starlette, port: int, certificate: LiveCertificate | None = None) -> uvicorn.Server:
    return _Server(
        uvicorn.Config(
            app,
            host="",  # both address families
            port=port,
            log_config=None,
            log_level="warning",
            access_log=False,
            lifespan="off",
            ws="none",
            server_header=False,
            limit_concurrency=CONCURRENT_REQUESTS,
            timeout_graceful_shutdown=LAST_REQUESTS_SECONDS,
            ssl_context_factory=(lambda _config, _default: certificate.context) if certificate else None,
        )
    )


async def _first(stop: asyncio.Event, serving: list[asyncio.Task[None]]) -> None:
    """Waits for the stop signal, or for a server that ended by itself (its port is taken, say)."""
    waiting = asyncio.create_task(stop.wait())
    await asyncio.wait([waiting, *serving], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
