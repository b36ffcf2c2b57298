"""Delivery by ResourceClaim on this node: the ResourceSlice and the DRA plugin's socket.

Guarantees: a node without such a share has no watch and no socket, and asks for no API that may not be served.
"""

from collections.abc import Callable, Collection
from pathlib import Path

from gpushare.agent.dra.claims import ClaimPreparer, ClaimSources
from gpushare.agent.dra.gone import GoneClaims
from gpushare.agent.dra.plugin import DraPlugin
from gpushare.agent.dra.publisher import SlicePublisher
from gpushare.agent.dra.service import DeviceHealth
from gpushare.agent.dra.slices import closed_devices, device, resource_slice, tainted
from gpushare.agent.gpus.view import DriverVersions
from gpushare.agent.reconcile.decision import GpuDecision
from gpushare.api import names
from gpushare.api.conditions import DaemonReason
from gpushare.api.gpunode import Uuid
from gpushare.kube.client import Kube, Object

NO_CDI = "NoCdi"
DRAINING = "Draining"
DELETED = "ShareDeleted"


class ClaimDelivery:
    def __init__(self, kube: Kube, kubelet_dir: Path, sources: ClaimSources, clock: Callable[[], float]) -> None:
        """`clock`: seconds, monotonic."""
        self._node = sources.node
        self._claims = sources.claims
        self._slices = SlicePublisher(kube, sources.node, clock, sources.changed)
        preparer = ClaimPreparer(kube, sources)
        self._plugin = DraPlugin(kubelet_dir, preparer)
        self._gone = GoneClaims(kube, sources.claims, sources.used, preparer.unprepare, clock)
        self._offered: tuple[GpuDecision, ...] = ()
        self._serving = False

    async def offer(self, gpus: Collection[GpuDecision]) -> None:
        """Sets the GPUs of shares that are delivered by claims, and their health; `publish` writes them into the
        ResourceSlice. Opens the socket for the first of them; closes it once nothing is offered, prepared or published.
        """
        self._offered = tuple(gpus)
        if gpus or self._claims:
            self._serving = True
            self._plugin.start()
            self._slices.follow()
        elif self._serving and self._slices.known and self._slices.present is None:
            self._serving = False
            await self._plugin.close()
        self._plugin.health.set(
            DeviceHealth(self._node, names.device_name(item.plan.uuid), _trouble(item)) for item in gpus
        )

    @property
    def refused(self) -> str:
        """Why the API server takes no ResourceSlice of this node, as one sentence; empty: it takes it."""
        return self._slices.refused if self._serving else ""

    def closed(self) -> set[Uuid] | None:
        """The offered GPUs that no claim can get, by the API server's ResourceSlice. None: that is not known."""
        if not self._slices.known:
            return None
        shut = closed_devices(self._slices.present)
        uuids = [item.plan.uuid for item in self._offered]
        return {uuid for uuid in uuids if shut is None or names.device_name(uuid) in shut}

    async def publish(self, driver: DriverVersions | None, *, by_cdi: bool) -> None:
        """Writes the ResourceSlice where it differs; removes it once nothing is offered."""
        if not self._serving and self._slices.present is None:
            return  # else it was written while the last share left
        each = [self._device(item, driver, by_cdi) for item in self._offered]
        devices = [published for published in each if published is not None]
        if not devices:
            await self._slices.publish(None)
        elif uid := await self._slices.node_uid():
            await self._slices.publish(resource_slice(self._node, uid, devices, self._claims.count))

    async def follow_claims(self) -> None:
        """Reads the prepared claims where that failed; unprepares those that no kubelet will ask for any more."""
        self._claims.read()
        await self._gone.give_up()

    async def close(self) -> None:
        """Prepared claims stay prepared."""
        await self._plugin.close()
        await self._slices.close()

    def _device(self, item: GpuDecision, driver: DriverVersions | None, by_cdi: bool) -> Object | None:
        why = closed_reason(item) if by_cdi else NO_CDI
        if item.view is not None and item.share is not None:
            return device(item.view.info, item.share, driver, why)
        # Lost before this agent started: its device stays as published, for the claims that have a part of it.
        present = (self._slices.present or {"spec": {}})["spec"].get("devices") or ()
        name = names.device_name(item.plan.uuid)
        return next((tainted(published, why) for published in present if published["name"] == name), None)


def closed_reason(item: GpuDecision) -> str:
    """Why it takes no claim now, as one word, which pending claims show; empty: it takes claims."""
    readiness = item.readiness
    if item.view is None or item.view.lost:
        return DaemonReason.GPU_LOST.value
    if item.offer.accepting:
        return ""
    if item.share is not None and item.share.deleting:
        return DELETED
    return DRAINING if readiness.takes_clients else readiness.reason.value


def _trouble(item: GpuDecision) -> str:
    readiness = item.readiness
    return "" if readiness.ready else f"{readiness.reason.value}: {readiness.message}"
