"""Keeps the webhook's certificate Secret and the caBundle of both webhook configurations as they should be.

Guarantees: writes nothing when nothing differs; a caBundle that somebody takes away (an upgrade of the chart, say) is
back within a second; a lost race over the Secret is read again, never overwritten.
"""

import asyncio
import base64
import binascii
import logging
from datetime import UTC, datetime
from typing import Protocol

import aiohttp

from gpushare.controller.authority import BUNDLE, dns_names, renewed
from gpushare.kube.client import MUTATING_WEBHOOKS, SECRETS, VALIDATING_WEBHOOKS, Kube, KubeError, Object
from gpushare.kube.reflector import Reflector

LOG = logging.getLogger(__name__)
MANAGER = "gpushare-operator"
RECHECK_SECONDS = 600.0
RETRY_SECONDS = 5.0
DEBOUNCE_SECONDS = 0.2


class CertificateSettings(Protocol):
    """What this needs of the operator's settings."""

    @property
    def namespace(self) -> str: ...

    @property
    def webhook_secret(self) -> str: ...

    @property
    def webhook_service(self) -> str: ...

    @property
    def webhook_configuration(self) -> str:
        """Name of both the Mutating- and the ValidatingWebhookConfiguration."""
        ...


async def run(kube: Kube, settings: CertificateSettings) -> None:
    """Until cancelled. Run it in the active operator only."""
    wake = asyncio.Event()
    named = f"metadata.name={settings.webhook_configuration}"
    watches = [
        Reflector(kube, MUTATING_WEBHOOKS, wake.set, fieldSelector=named),
        Reflector(kube, VALIDATING_WEBHOOKS, wake.set, fieldSelector=named),
        Reflector(
            kube,
            SECRETS,
            wake.set,
            namespace=settings.namespace,
            fieldSelector=f"metadata.name={settings.webhook_secret}",
        ),
    ]
    async with asyncio.TaskGroup() as tasks:
        for watch in watches:
            tasks.create_task(watch.run())
        while True:
            wake.clear()
            pause = await _try(kube, settings)
            try:
                await asyncio.wait_for(wake.wait(), pause)
            except TimeoutError:
                continue
            await asyncio.sleep(DEBOUNCE_SECONDS)


async def reconcile(kube: Kube, settings: CertificateSettings, now: datetime) -> None:
    """One pass: the Secret first, since configurations must trust it before the webhook serves it. Raises KubeError."""
    bundle = await _ensure_secret(kube, settings, now)
    for resource in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS):
        configuration = await kube.find(resource, settings.webhook_configuration)
        patch = bundle_patch(configuration or {}, bundle)
        if patch:
            await kube.patch(resource, settings.webhook_configuration, patch, manager=MANAGER, kind="json")
            LOG.info("wrote the caBundle of %s %s", resource.plural, settings.webhook_configuration)


def bundle_patch(configuration: Object, bundle: bytes) -> list[Object]:
    """JSON patch that gives every webhook of a configuration this caBundle; empty where all have it.

    Each operation is guarded by a test, so that a configuration that changed meanwhile is not written by position.
    """
    wanted = base64.b64encode(bundle).decode()
    patch: list[Object] = []
    for index, webhook in enumerate(configuration.get("webhooks") or []):
        if webhook["clientConfig"].get("caBundle") != wanted:
            patch.append({"op": "test", "path": f"/webhooks/{index}/name", "value": webhook["name"]})
            patch.append({"op": "add", "path": f"/webhooks/{index}/clientConfig/caBundle", "value": wanted})
    return patch


async def _try(kube: Kube, settings: CertificateSettings) -> float:
    """One pass; returns the seconds until the next without an occasion."""
    try:
        await reconcile(kube, settings, datetime.now(UTC))
    except (KubeError, aiohttp.ClientError, OSError) as error:
        LOG.warning("the webhook's certificates could not be checked, again in %.0f s: %s", RETRY_SECONDS, error)
        return RETRY_SECONDS
    return RECHECK_SECONDS


async def _ensure_secret(kube: Kube, settings: CertificateSettings, now: datetime) -> bytes:
    """Returns the bundle to trust."""
    secret = await kube.find(SECRETS, settings.webhook_secret, settings.namespace)
    data = _decoded((secret or {}).get("data") or {})
    wanted = renewed(data, dns_names(settings.webhook_service, settings.namespace), now)
    if wanted is None:
        return data[BUNDLE]
    encoded = {key: base64.b64encode(value).decode() for key, value in wanted.items()}
    if secret is None:
        await kube.create(SECRETS, _new_secret(settings, encoded), namespace=settings.namespace)
    else:
        body: Object = {"metadata": {"resourceVersion": secret["metadata"]["resourceVersion"]}, "data": encoded}
        await kube.patch(SECRETS, settings.webhook_secret, body, manager=MANAGER, namespace=settings.namespace)
    LOG.info("renewed the webhook's certificates in Secret %s", settings.webhook_secret)
    return wanted[BUNDLE]


def _new_secret(settings: CertificateSettings, data: dict[str, str]) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": settings.webhook_secret,
            "labels": {"app.kubernetes.io/name": "gpushare", "app.kubernetes.io/component": "webhook"},
        },
        "type": "kubernetes.io/tls",
        "data": data,
    }


def _decoded(data: dict[str, str]) -> dict[str, bytes]:
    """Entries that are no base64 are left out, as if they were missing."""
    decoded = {}
    for key, value in data.items():
        try:
            decoded[key] = base64.b64decode(value)
        except binascii.Error:
            LOG.warning("entry %s of the webhook's Secret is not base64", key)
    return decoded
