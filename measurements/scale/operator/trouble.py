"""A node whose writes never end, and a share that is refused: the trouble of `fleet --trouble`.

The API server asks two webhooks: one accepts connections and never answers, the other listens nowhere.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gpushare.api import names
from gpushare.kube.client import GPU_SHARES, VALIDATING_WEBHOOKS, Kube, Object
from measurements.scale import nodes as base

REFUSED_NODE, HANGING_NODE = base.name_of(0), base.name_of(1)
REFUSED_SHARE = "refused"
KNOWN_SECONDS = 3.0
"""The time until the API server asks webhooks that are new."""


@asynccontextmanager
async def trouble(kube: Kube, refused: Object) -> AsyncIterator[None]:
    """Makes trouble: no write to HANGING_NODE is answered but for statuses, and `refused`, a share for REFUSED_NODE
    that is made here, is refused its finalizer.
    """
    server = await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0)  # it never answers
    port = server.sockets[0].getsockname()[1]
    hangs = _webhook(
        "hangs", port, f"object.metadata.name == '{HANGING_NODE}'", ["", names.GROUP], ["nodes", "gpunodes"]
    )
    refuses = _webhook("refuses", 9, f"object.metadata.name == '{REFUSED_SHARE}'", [names.GROUP], ["gpushares"])
    metadata = {"name": "trouble"}
    kind = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration"}
    await kube.create(VALIDATING_WEBHOOKS, {**kind, "metadata": metadata, "webhooks": [hangs, refuses]})
    await asyncio.sleep(KNOWN_SECONDS)
    await kube.create(GPU_SHARES, refused)
    try:
        yield
    finally:
        server.close()


def _webhook(name: str, port: int, expression: str, groups: list[str], resources: list[str]) -> Object:
    return {
        "name": f"{name}.gpushare.dev",
        "clientConfig": {"url": f"https://127.0.0.1:{port}/"},
        "rules": [{"apiGroups": groups, "apiVersions": ["*"], "operations": ["UPDATE"], "resources": resources}],
        "matchConditions": [{"name": name, "expression": expression}],
        "timeoutSeconds": 30,
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
