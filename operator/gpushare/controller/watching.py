"""kopf: the watches that keep the world current.

Only `on.event` handlers: kopf adds no finalizer and writes nothing, neither annotations nor events; a share's drain
is told by our own finalizer. There is no peering, since a Lease decides who is active. Watches and requests have time
limits, so that a connection that died silently is replaced.
"""

import logging
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import kopf

from gpushare.api import names
from gpushare.controller.fleet_cache import WATCHED, FleetCache
from gpushare.controller.mps_pods import MPS_LABELS
from gpushare.controller.settings import OperatorSettings
from gpushare.kube.client import PODS, Resource

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TOKEN_MINUTES = 10
"""A mounted token is renewed by the kubelet; it is read again this often."""


async def watch(world: FleetCache, settings: OperatorSettings) -> None:
    """Runs until SIGTERM or SIGINT (kopf takes both over), or raises what ended it."""
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)  # else a line for each heartbeat of each node
    await kopf.operator(
        registry=_registry(world),
        settings=_kopf_settings(),
        namespaces=[settings.namespace],
        standalone=True,
        identity=settings.pod_name,  # type: ignore[arg-type]  # else kopf asks for the user, and ours has no name
    )


def _registry(world: FleetCache) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()
    kopf.on.login(registry=registry)(_login)
    for resource in WATCHED:
        labels = MPS_LABELS if resource == PODS else None
        on_event = kopf.on.event(resource.group, resource.version, resource.plural, labels=labels, registry=registry)
        on_event(_handler(world, resource))
    return registry


def _handler(world: FleetCache, resource: Resource) -> Any:
    async def changed(event: Any, **_: Any) -> None:
        if event["type"] == "DELETED":
            world.deleted(resource, event["object"])
        else:
            world.observe(resource, event["object"])

    return changed


def _kopf_settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.posting.loggers = False
    settings.scanning.disabled = True
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 10
    settings.watching.server_timeout = 290
    settings.watching.client_timeout = 310
    settings.process.ultimate_exiting_timeout = 20
    # Never written, since there are only event handlers; named all the same, so that nothing carries kopf's own names.
    settings.persistence.finalizer = f"{names.GROUP}/kopf"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=f"kopf.{names.GROUP}")
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=f"kopf.{names.GROUP}")
    return settings


def _login(settings: kopf.OperatorSettings, **_: Any) -> kopf.ConnectionInfo | None:
    """In a pod by its service account and the API server's address, which needs no DNS; elsewhere by kubeconfig."""
    host = os.environ.get("KUBERNETES_SERVICE_HOST")
    if not host:
        return kopf.login_with_kubeconfig(settings=settings)
    address = f"[{host}]" if ":" in host else host
    return kopf.ConnectionInfo(
        server=f"https://{address}:{os.environ.get('KUBERNETES_SERVICE_PORT', '443')}",
        ca_path=SERVICE_ACCOUNT / "ca.crt",
        token=(SERVICE_ACCOUNT / "token").read_text().strip(),
        expiration=datetime.now(UTC) + timedelta(minutes=TOKEN_MINUTES),
    )
