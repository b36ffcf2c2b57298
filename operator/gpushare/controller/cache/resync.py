"""What no watch reports, read every five minutes.

First, the GpuShares: after a broken watch kopf lists them again, and reports those that it finds, but not those that
were deleted meanwhile. Second, facts of the cluster: its version, and the nodes on which NVIDIA's own DRA driver offers
GPUs.
"""

import asyncio
import logging
import random
import re
from typing import Protocol

from gpushare.api.names import NVIDIA_DRA_DRIVER
from gpushare.controller.cache.fleet_cache import FleetCache
from gpushare.kube.resources import (
    CLAIMS_SINCE,
    DEVICE_CLASSES,
    EARLIER_RESOURCE_SLICES,
    GPU_SHARES,
    RESOURCE_SLICES,
    KubeError,
    Object,
    Resource,
)

LOG = logging.getLogger(__name__)
RESYNC_SECONDS = 300.0
"""The interval, and so the delay with which a new ResourceSlice of NVIDIA's DRA driver is seen."""
FIRST_BACKOFF = 1.0
LAST_BACKOFF = 15.0
_VERSION = re.compile(r"v?(?P<major>\d+)\.(?P<minor>\d+)")


class ClusterReader(Protocol):
    """The part of gpushare.kube.client.Kube that is used here, with its errors."""

    async def list_all(self, resource: Resource, namespace: str | None = None, **selectors: str) -> Object: ...

    async def server_version(self) -> str: ...

    async def served(self, resource: Resource) -> bool: ...


async def resync(kube: ClusterReader, cache: FleetCache) -> None:
    """Returns once everything has been read; waits for CRDs that are not there yet."""
    from gpushare.kube.client import API_ERRORS  # here, since it brings aiohttp, which `read_once` does without

    backoff = FIRST_BACKOFF
    while True:
        try:
            return await read_once(kube, cache)
        except API_ERRORS as error:
            LOG.warning("cannot list GpuShares and what the cluster serves, again in %.0f s: %s", backoff, error)
        await asyncio.sleep(backoff)
        backoff = min(backoff * 2, LAST_BACKOFF)


async def keep_resyncing(kube: ClusterReader, cache: FleetCache) -> None:
    """Runs until cancelled."""
    while True:
        await asyncio.sleep(RESYNC_SECONDS * random.uniform(0.9, 1.1))  # noqa: S311 - spread, no secret
        await resync(kube, cache)


async def read_once(kube: ClusterReader, cache: FleetCache) -> None:
    """Reads everything once, and asks for all at once: a start waits for the answers. Raises API_ERRORS."""
    _, nodes, reason = await asyncio.gather(_list_shares(kube, cache), nvidia_dra_nodes(kube), no_claims(kube))
    cache.set_cluster(nodes, reason)


async def _list_shares(kube: ClusterReader, cache: FleetCache) -> None:
    """Takes the list as soon as it is answered: a share that is deleted before the other answers must not come back."""
    answer = await kube.list_all(GPU_SHARES)
    cache.shares.replace(answer.get("items") or [], answer["metadata"]["resourceVersion"])


async def no_claims(kube: ClusterReader) -> str:
    """Why this cluster cannot deliver by ResourceClaim; empty where it can.

    Capacity that claims consume is on by default from Kubernetes 1.36 on (DRAConsumableCapacity); whether an
    administrator switched its gate off cannot be read, and shows as slices that the API server strips.
    """
    version = await kube.server_version()
    parsed = _VERSION.match(version)
    if parsed and (int(parsed["major"]), int(parsed["minor"])) < CLAIMS_SINCE:
        return f"needs Kubernetes {CLAIMS_SINCE[0]}.{CLAIMS_SINCE[1]} or newer, and this cluster has {version}"
    if not await kube.served(DEVICE_CLASSES):
        return "the API server does not serve resource.k8s.io/v1"
    return ""


async def nvidia_dra_nodes(kube: ClusterReader) -> frozenset[str]:
    """Nodes on which NVIDIA's DRA driver offers GPUs; none where the cluster serves no ResourceSlices at all."""
    for resource in (RESOURCE_SLICES, *EARLIER_RESOURCE_SLICES):
        try:
            answer = await kube.list_all(resource, fieldSelector=f"spec.driver={NVIDIA_DRA_DRIVER}")
        except KubeError as error:
            if not error.not_found:
                raise
            continue
        specs = [item.get("spec") or {} for item in answer.get("items") or []]
        return frozenset(spec["nodeName"] for spec in specs if spec.get("nodeName"))
    return frozenset()
