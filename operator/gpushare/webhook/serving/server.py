"""Runs the webhook: watches, the TLS server, probes and metrics, until it is stopped.

Guarantees: a rolling update loses no review. Once stopped, the webhook is not ready at once, but serves on until the
Service's endpoints no longer list it, and then answers the reviews under way.
"""

import asyncio
from dataclasses import dataclass

from gpushare.http import probes
from gpushare.http.connection import ServerLimits
from gpushare.http.server import serve as serve_app
from gpushare.kube.client import Kube
from gpushare.metrics.endpoint import exposed
from gpushare.webhook.metrics import export
from gpushare.webhook.serving.app import create_app
from gpushare.webhook.serving.certificate import CertificateSource
from gpushare.webhook.sources import ClusterSources

LIMITS = ServerLimits(keepalive_seconds=120.0, drain_seconds=10.0)
"""An API server keeps an idle connection for 90 s: we must not close one that it is about to use."""


@dataclass(frozen=True, slots=True)
class WebhookSettings:
    namespace: str
    secret: str
    port: int
    probe_port: int
    metrics_port: int
    """0: no metrics."""
    leave_seconds: float = 5.0
    """How long the Service's endpoints may still list a pod that is not ready."""
    client_authority: str = ""
    """Certificates as PEM: whoever asks for a review must show one that these have signed. Empty: anybody may ask."""
    client_names: tuple[str, ...] = ()
    """The common names that such a certificate may have. Empty: any."""
    tolerated: tuple[str, ...] = ()
    """Keys of the taints that pods of shares tolerate."""


async def serve(kube: Kube, settings: WebhookSettings, stop: asyncio.Event) -> None:
    """Runs until `stop` is set, and `leave_seconds` longer. An error in any part ends all: Kubernetes restarts it."""
    sources = ClusterSources(kube)
    certificates = CertificateSource(kube, settings.namespace, settings.secret, settings.client_authority)
    exported, meters = export(lambda: certificates.certificate.not_after)

    def unready() -> str | None:
        if stop.is_set():
            return "the webhook is ending"
        if sources.synced and certificates.certificate.loaded:
            return None
        return "waiting for the API server or a certificate"

    app = create_app(sources, settings.namespace, meters, tolerated=settings.tolerated)
    checks = {"/healthz": probes.well, "/readyz": unready}
    async with exposed(settings.metrics_port, exported), asyncio.TaskGroup() as tasks:
        watches = [tasks.create_task(sources.run()), tasks.create_task(certificates.run())]
        async with (
            probes.serve(settings.probe_port, checks),
            serve_app(
                app,
                settings.port,
                tls=certificates.certificate.context,
                limits=LIMITS,
                client_names=settings.client_names,
            ),
        ):
            await stop.wait()
            await asyncio.sleep(settings.leave_seconds)
        for watch in watches:
            watch.cancel()
