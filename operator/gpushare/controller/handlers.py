"""What kopf calls: the operator's start and end, its login, its liveness, and the GpuShares.

The handlers change nothing: kopf adds no finalizer and writes neither annotations nor events, since there are handlers
of events alone. They keep the cache current, and a change wakes one reconcile for the whole fleet (`reconcile`), which
plans with all shares and nodes and writes what differs. docs/decisions/0001-kopf.md says why.

`memo.operator` is this process's Operator.
"""

import logging
from importlib.metadata import version
from typing import Any

import kopf

from gpushare.api import names
from gpushare.controller.operator import Operator
from gpushare.controller.settings import OperatorSettings
from gpushare.kube.client import API_ERRORS, GPU_SHARES, connect
from gpushare.kube.session import session_for_kopf
from gpushare.metrics.endpoint import exposed

STUCK_SECONDS = 300.0
"""So long without progress is a hang: a plan takes seconds, and each write has a limit (`apply.WRITE_SECONDS`)."""
RETRY_SECONDS = 5.0

registry = kopf.OperatorRegistry()


@kopf.on.startup(registry=registry)
async def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
    for name in ("kopf.objects", "kopf.activities.probe", "aiohttp.access"):  # a line for each event and each probe
        logging.getLogger(name).setLevel(logging.WARNING)
    settings.posting.enabled = False  # events are ours alone (kube.events.recorder), with names of their own
    settings.posting.loggers = False
    settings.scanning.disabled = True  # the CRDs come with the chart
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 10
    settings.watching.server_timeout = 290
    settings.watching.client_timeout = 310
    settings.process.ultimate_exiting_timeout = 20
    # Never written, since there are only event handlers; named all the same, so that nothing carries kopf's own names.
    settings.persistence.finalizer = f"{names.GROUP}/kopf"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=f"kopf.{names.GROUP}")
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=f"kopf.{names.GROUP}")


@kopf.on.startup(registry=registry)
async def wait_for_crds(memo: kopf.Memo, **_: Any) -> None:
    """kopf looks for the resources that it watches once, at its start."""
    try:
        served = await operator_of(memo).kube.served(GPU_SHARES)
    except API_ERRORS as error:
        raise kopf.TemporaryError(f"the API server does not answer: {error}", delay=RETRY_SECONDS) from None
    if not served:
        raise kopf.TemporaryError("the API server does not serve GpuShares (yet)", delay=RETRY_SECONDS)


@kopf.on.startup(registry=registry)
async def start(memo: kopf.Memo, **_: Any) -> None:
    operator_of(memo).start()


@kopf.on.cleanup(registry=registry)
async def stop(memo: kopf.Memo, **_: Any) -> None:
    await operator_of(memo).stop()


@kopf.on.login(registry=registry)
async def login(**_: Any) -> kopf.AiohttpSession:
    """Logs kopf in as our own client. kopf calls it again after a 401, and after the session closed itself for
    another authority."""
    server, session = await session_for_kopf()
    return kopf.AiohttpSession(server=server, aiohttp_session=session)


@kopf.on.probe(registry=registry, id="reconcile")
async def reconcile(memo: kopf.Memo, **_: Any) -> str:
    """A replica that waits for the Lease is healthy. A permanent error is HTTP 500: the kubelet starts us again."""
    seconds = operator_of(memo).reconciler.stalled_seconds()
    if seconds > STUCK_SECONDS:
        raise kopf.PermanentError(f"nothing has moved for {seconds:.0f} s")
    return "ok"


@kopf.on.event(GPU_SHARES.group, GPU_SHARES.version, GPU_SHARES.plural, registry=registry)
async def share_changed(event: kopf.RawEvent, memo: kopf.Memo, **_: Any) -> None:
    shares = operator_of(memo).reconciler.cache.shares
    if event["type"] == "DELETED":
        shares.remove(dict(event["object"]))
    else:
        shares.put(dict(event["object"]))


def operator_of(memo: kopf.Memo) -> Operator:
    operator: Operator = memo.operator
    return operator


async def run(settings: OperatorSettings, probe_port: int, metrics_port: int) -> None:
    """Runs kopf until SIGTERM or SIGINT; raises what ended the operator otherwise, LeaseLostError among it."""
    agent = f"gpushare-operator/{version('gpushare')}"
    kube = await connect(agent)
    try:
        operator = Operator(kube, settings, lambda: connect(agent))
        async with exposed(metrics_port, operator.exported):
            await kopf.operator(
                registry=registry,
                memo=kopf.Memo(operator=operator),
                clusterwide=True,
                standalone=True,  # no peering: the Lease decides which replica is active
                identity=settings.pod_name,  # type: ignore[arg-type]  # else kopf asks for the user; ours has no name
                liveness_endpoint=f"http://{_host(settings.pod_ip)}:{probe_port}/healthz",
                stop_flag=operator.ended,
            )
        operator.result()
    finally:
        await kube.close()


def _host(address: str) -> str:
    return f"[{address}]" if ":" in address else address
