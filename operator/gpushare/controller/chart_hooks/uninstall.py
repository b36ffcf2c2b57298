"""Deletes the GpuShares before gpushare is uninstalled: nothing may be left that only gpushare itself can undo.

A GpuShare that is left behind keeps its finalizer for ever, its GPUs their compute mode and its MPS pods their GPUs. So
their clients are waited for, within a time limit. Clients are never ended: a share goes when the last container that
holds a slot has ended, or by its own maxWait. Where the chart's owner did not choose deletion, this does not run, and
a policy of the chart refuses the uninstallation while there are shares.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from gpushare.kube.client import API_ERRORS, GPU_NODES, GPU_SHARES, Kube, KubeError, Object, Resource
from gpushare.messages.wording import first_names

LOG = logging.getLogger(__name__)
POLL_SECONDS = 2.0
NAMES_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Leftover:
    """Shares as objects by name, and nodes on which a daemon still runs."""

    shares: dict[str, Object]
    nodes: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.shares or self.nodes)


async def delete_shares(
    kube: Kube,
    *,
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
    poll_seconds: float = POLL_SECONDS,
) -> str | None:
    """Returns what it still waits for after `seconds`, or None once no share and no daemon is left.

    What the API server refuses is asked again too: a busy one refuses anybody (429, 503).
    """
    end = clock() + seconds
    deleted: set[str] = set()
    while True:
        try:
            left = await _left(kube)
            if not left:
                return None
            staying = {name for name, share in left.shares.items() if not share["metadata"].get("deletionTimestamp")}
            for name in sorted(staying - deleted):
                LOG.info("deleting GpuShare %s", name)
                await kube.delete(GPU_SHARES, name)
                deleted.add(name)
            why = _waits(left)
        except API_ERRORS as error:
            why = f"the API server did not do what it was asked for: {error}"
        if clock() + poll_seconds > end:
            return f"not uninstalled, since after {seconds:.0f} s there is still something to wait for. {why}"
        LOG.info("waiting: %s", why)
        await asyncio.sleep(poll_seconds)


async def _left(kube: Kube) -> Leftover:
    shares = {item["metadata"]["name"]: item for item in await _items(kube, GPU_SHARES)}
    nodes = await _items(kube, GPU_NODES)
    return Leftover(
        shares, tuple(sorted(node["metadata"]["name"] for node in nodes if (node.get("status") or {}).get("daemons")))
    )


async def _items(kube: Kube, resource: Resource) -> list[Object]:
    """The objects of a kind; none of one that the cluster does not know (any more)."""
    try:
        items: list[Object] = (await kube.list_all(resource)).get("items") or []
    except KubeError as error:
        if error.not_found:
            return []
        raise
    return items


def _waits(left: Leftover) -> str:
    lines = [f"GpuShare {name}: {_ready_message(share)}" for name, share in sorted(left.shares.items())]
    if not lines:
        lines = [f"MPS daemons still run on {first_names(list(left.nodes), NAMES_SHOWN)}: look at the agents there"]
    return "; ".join(lines[:NAMES_SHOWN])


def _ready_message(share: Object) -> str:
    conditions = (share.get("status") or {}).get("conditions") or []
    return (
        next((str(item.get("message", "")) for item in conditions if item.get("type") == "Ready"), "")
        or "no news of it"
    )
