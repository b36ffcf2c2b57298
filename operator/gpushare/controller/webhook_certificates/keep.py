"""Keeps the webhook's two Secrets and the caBundle of both webhook configurations as they should be.

Guarantees: nothing is written unless something differs; a caBundle or a serving certificate that somebody removes (an
upgrade of the chart, say) is back within a second; after a conflict over a Secret it is read again, never overwritten;
the authority's key is never in the Secret that the webhook reads. The authority's Secret is not watched: a loss is seen
at the next pass, within ten minutes, and nothing needs it before.
"""

import asyncio
import base64
import binascii
import logging
from dataclasses import dataclass
from datetime import UTC, datetime

from gpushare.api.conditions import ShareReason
from gpushare.controller.settings import OperatorSettings
from gpushare.controller.webhook_certificates.authority import BUNDLE, dns_names, renewed_authority, renewed_serving
from gpushare.controller.writes import MANAGER
from gpushare.kube.cache.reflector import Reflector
from gpushare.kube.client import API_ERRORS, MUTATING_WEBHOOKS, SECRETS, VALIDATING_WEBHOOKS, Kube, KubeError, Object
from gpushare.kube.events.event import Event, reference
from gpushare.kube.events.recorder import EventRecorder
from gpushare.messages.refused_writes import RefusedWrite, refused_sentence

LOG = logging.getLogger(__name__)
RECHECK_SECONDS = 600.0
RETRY_SECONDS = 5.0
DEBOUNCE_SECONDS = 0.2
LABELS = {"app.kubernetes.io/name": "gpushare", "app.kubernetes.io/component": "operator"}
"""Those that the chart gives the Secrets: with others a server-side apply of the chart would be a conflict."""


async def run(
    kube: Kube,
    settings: OperatorSettings,
    recorder: EventRecorder,
    *,
    debounce_seconds: float = DEBOUNCE_SECONDS,
) -> None:
    """Runs until cancelled, in the active replica only. What the API server refuses is told by an event on the
    webhook's Secret, which may not be there."""
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
            pause = await _try(kube, settings, recorder)
            try:
                async with asyncio.timeout(pause):
                    await wake.wait()
            except TimeoutError:
                continue
            await asyncio.sleep(debounce_seconds)


async def reconcile(kube: Kube, settings: OperatorSettings, now: datetime) -> None:
    """Makes one pass. Clients trust an authority before the webhook serves what it signed. Raises KubeError."""
    authority = await _read(kube, settings.authority_secret, settings.namespace)
    serving = await _read(kube, settings.webhook_secret, settings.namespace)
    fresh_authority = renewed_authority(authority.data, serving.data, now)
    if fresh_authority:
        await _write(kube, authority, fresh_authority, "Opaque")
    trusted = fresh_authority or authority.data
    await _ensure_bundles(kube, settings, trusted[BUNDLE])
    names = dns_names(settings.webhook_service, settings.namespace)
    fresh_serving = renewed_serving(serving.data, trusted, names, now)
    if fresh_serving:
        await _write(kube, serving, fresh_serving, "kubernetes.io/tls")


async def _ensure_bundles(kube: Kube, settings: OperatorSettings, bundle: bytes) -> None:
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
    encoded = base64.b64encode(bundle).decode()
    patch: list[Object] = []
    for index, webhook in enumerate(configuration.get("webhooks") or []):
        if webhook["clientConfig"].get("caBundle") != encoded:
            patch.append({"op": "test", "path": f"/webhooks/{index}/name", "value": webhook["name"]})
            patch.append({"op": "add", "path": f"/webhooks/{index}/clientConfig/caBundle", "value": encoded})
    return patch


async def _try(kube: Kube, settings: OperatorSettings, recorder: EventRecorder) -> float:
    """Makes one pass; returns the seconds until the next one, unless something changes before."""
    try:
        await reconcile(kube, settings, datetime.now(UTC))
    except API_ERRORS as error:
        LOG.warning("the webhook's certificates could not be checked, again in %.0f s: %s", RETRY_SECONDS, error)
        if isinstance(error, KubeError) and error.refused and not error.conflict:
            refusal = RefusedWrite("to write the webhook's certificate", error.status, str(error))
            secret = {"metadata": {"name": settings.webhook_secret, "namespace": settings.namespace}}
            regarding, note = reference(secret, "v1", "Secret"), refused_sentence(refusal)
            recorder.record(Event(regarding, "Warning", ShareReason.WRITE_REFUSED, "Apply", note))
        return RETRY_SECONDS
    return RECHECK_SECONDS


@dataclass(frozen=True, slots=True)
class _Secret:
    """A Secret as it was read, without a `version` where there is none."""

    name: str
    namespace: str
    version: str | None
    data: dict[str, bytes]


async def _read(kube: Kube, name: str, namespace: str) -> _Secret:
    secret = await kube.find(SECRETS, name, namespace)
    if secret is None:
        return _Secret(name, namespace, None, {})
    return _Secret(name, namespace, secret["metadata"]["resourceVersion"], _decoded(name, secret.get("data") or {}))


async def _write(kube: Kube, secret: _Secret, desired: dict[str, bytes], kind: str) -> None:
    """Writes exactly the desired entries into the Secret."""
    data = {key: base64.b64encode(value).decode() for key, value in desired.items()}
    if secret.version is None:
        body: Object = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": secret.name, "labels": LABELS},
            "type": kind,
            "data": data,
        }
        await kube.create(SECRETS, body, namespace=secret.namespace)
    else:
        gone = dict.fromkeys(secret.data.keys() - data.keys())
        body = {"metadata": {"resourceVersion": secret.version}, "data": {**gone, **data}}
        await kube.patch(SECRETS, secret.name, body, manager=MANAGER, namespace=secret.namespace)
    LOG.info("renewed the webhook's certificates in Secret %s", secret.name)


def _decoded(name: str, data: dict[str, str]) -> dict[str, bytes]:
    """Entries that are no base64 are left out, as if they were missing."""
    decoded = {}
    for key, value in data.items():
        try:
            decoded[key] = base64.b64decode(value)
        except binascii.Error:
            LOG.warning("entry %s of Secret %s is not base64", key, name)
    return decoded
