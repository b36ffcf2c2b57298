"""Fills the world by listing: once before the first plan, and again now and then.

kopf's watches do the rest. They tell nothing of an object that was deleted while a watch was broken; a list does.
"""

import asyncio
import logging
import random
import re

from gpushare.controller.fleet_cache import WATCHED, FleetCache
from gpushare.controller.mps_pods import MPS_LABELS
from gpushare.controller.settings import OperatorSettings
from gpushare.kube.client import API_ERRORS, DAEMON_SETS, DEVICE_CLASSES, PODS, RESOURCE_SLICES, Kube, KubeError

LOG = logging.getLogger(__name__)
RESYNC_SECONDS = 300.0
"""Also the delay with which a new ResourceSlice of NVIDIA's DRA driver is seen."""
FIRST_BACKOFF = 1.0
LAST_BACKOFF = 15.0
MPS_SELECTOR = ",".join(f"{key}={value}" for key, value in MPS_LABELS.items())
NVIDIA_DRA_DRIVER = "gpu.nvidia.com"
CLAIMS_SINCE = (1, 36)
_VERSION = re.compile(r"v?(?P<major>\d+)\.(?P<minor>\d+)")


async def load(kube: Kube, world: FleetCache, settings: OperatorSettings) -> None:
    """Returns once everything has been listed; waits for CRDs that are not there yet."""
    backoff = FIRST_BACKOFF
    while True:
        try:
            return await relist(kube, world, settings)
        except API_ERRORS as error:
            LOG.warning("cannot list what to plan on, again in %.0f s: %s", backoff, error)
        await asyncio.sleep(backoff)
        backoff = min(backoff * 2, LAST_BACKOFF)


async def resync(kube: Kube, world: FleetCache, settings: OperatorSettings) -> None:
    """Runs until cancelled."""
    while True:
        await asyncio.sleep(RESYNC_SECONDS * random.uniform(0.9, 1.1))  # noqa: S311 - spread, no secret
        await load(kube, world, settings)


async def relist(kube: Kube, world: FleetCache, settings: OperatorSettings) -> None:
    for resource in WATCHED:
        namespace = settings.namespace if resource in (DAEMON_SETS, PODS) else None
        selectors = {"labelSelector": MPS_SELECTOR} if resource == PODS else {}
        answer = await kube.list_all(resource, namespace, **selectors)
        world.relisted(resource, answer.get("items") or [], answer["metadata"]["resourceVersion"])
    world.slices_listed(await nvidia_dra_nodes(kube))
    world.claims_served(await no_claims(kube))


async def no_claims(kube: Kube) -> str:
    """Why this cluster cannot deliver by ResourceClaim; empty where it can.

    Capacity that claims consume is on by default from Kubernetes 1.36 on (DRAConsumableCapacity); whether an
    administrator switched its gate off cannot be read, and shows as slices that the API server strips.
    """
    version = await kube.server_version()
    found = _VERSION.match(version)
    if found and (int(found["major"]), int(found["minor"])) < CLAIMS_SINCE:
        return f"needs Kubernetes {CLAIMS_SINCE[0]}.{CLAIMS_SINCE[1]} or newer, and this cluster has {version}"
    if not await kube.served(DEVICE_CLASSES):
        return "the API server does not serve resource.k8s.io/v1"
    return ""


async def nvidia_dra_nodes(kube: Kube) -> frozenset[str]:
    """Nodes on which NVIDIA's DRA driver offers GPUs; none where the cluster has no such API (before 1.34)."""
    try:
        answer = await kube.list_all(RESOURCE_SLICES, fieldSelector=f"spec.driver={NVIDIA_DRA_DRIVER}")
    except KubeError as error:
        if error.not_found:
            return frozenset()
        raise
    return frozenset(
        item["spec"]["nodeName"] for item in answer.get("items") or [] if (item.get("spec") or {}).get("nodeName")
    )
