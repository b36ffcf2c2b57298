"""Delivery by ResourceClaim on this node: the ResourceSlice and the DRA plugin's socket.

Guarantees: a node without such a share has no watch and no socket, and asks for no API that may not be served.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gpushare.agent.dra.claims import ClaimPreparer, ClaimState
from gpushare.agent.dra.gone import ClaimUsers, GoneClaims
from gpushare.agent.dra.plugin import DraPlugin
from gpushare.agent.dra.publisher import SlicePublisher
from gpushare.agent.dra.service import DeviceHealth
from gpushare.agent.dra.slices import closed_devices, device, resource_slice, tainted
from gpushare.agent.gpus.view import DriverVersions, GpuView
from gpushare.agent.reconcile.decision import GpuDecision
from gpushare.api import names
from gpushare.api.conditions import DaemonReason
from gpushare.api.gpunode import Uuid
from gpushare.api.gpushare import GpuShare
from gpushare.kube.client import Kube, Object

NO_CDI = "NoCdi"
DRAINING = "Draining"
DELETED = "ShareDeleted"


@dataclass(frozen=True, slots=True)
class Offered:
    """A GPU of a share that is delivered by claims. `view`: None where NVML does not show it."""

    decision: GpuDecision
    share: GpuShare
    view: GpuView | None


class DeliveryState(ClaimState, ClaimUsers, Protocol):
    """The part of AgentState that claims are delivered from."""


class ClaimDelivery:
    def __init__(self, kube: Kube, kubelet_dir: Path, state: DeliveryState, clock: Callable[[], float]) -> None:
        """`clock`: seconds, monotonic."""
        self._state = state
        self._slices = SlicePublisher(kube, state.node, clock, state.tick_due.set)
        preparer = ClaimPreparer(kube, state)
        self._plugin = DraPlugin(kubelet_dir, preparer)
        self._gone = GoneClaims(kube, state, preparer.unprepare, clock)
        self._offered: tuple[Offered, ...] = ()
        self._serving = False

    def offer(self, gpus: Collection[Offered]) -> None:
        """Sets the GPUs that `publish` writes into the ResourceSlice, and their health. Never waits."""
        self._offered = tuple(gpus)
        if gpus or self._state.claims:
            self._serving = True
            self._plugin.start()
            self._slices.follow()
        self._plugin.health.set(
            DeviceHealth(self._state.node, names.device_name(item.decision.plan.uuid), _trouble(item)) for item in gpus
        )

    def closed(self) -> set[Uuid] | None:
        """The offered GPUs that no claim can get, by the API server's ResourceSlice. None: that is not known."""
        if not self._slices.known:
            return None
        shut = closed_devices(self._slices.present)
        uuids = [item.decision.plan.uuid for item in self._offered]
        return {uuid for uuid in uuids if shut is None or names.device_name(uuid) in shut}

    async def publish(self, driver: DriverVersions | None, *, by_cdi: bool) -> None:
        """Writes the ResourceSlice where it differs; removes slice and socket once nothing is offered or prepared."""
        if not self._serving:
            return
        devices = [found for item in self._offered if (found := self._device(item, driver, by_cdi)) is not None]
        if not devices:
            await self._slices.publish(None)
        elif uid := await self._slices.node_uid():
            await self._slices.publish(resource_slice(self._state.node, uid, devices, self._state.claims.count))
        if not (self._offered or self._state.claims) and self._slices.known and self._slices.present is None:
            await self._plugin.close()
            self._serving = False

    async def give_up_gone(self) -> None:
        """Unprepares claims that no kubelet will ask for any more."""
        await self._gone.give_up()

    async def close(self) -> None:
        """Prepared claims stay prepared."""
        await self._plugin.close()
        await self._slices.close()

    def _device(self, item: Offered, driver: DriverVersions | None, by_cdi: bool) -> Object | None:
        why = closed_reason(item) if by_cdi else NO_CDI
        if item.view is not None:
            return device(item.view.info, item.share, driver, why)
        # Lost before this agent started: its device stays as published, for the claims that have a part of it.
        present = (self._slices.present or {"spec": {}})["spec"].get("devices") or ()
        name = names.device_name(item.decision.plan.uuid)
        return next((tainted(found, why) for found in present if found["name"] == name), None)


def closed_reason(item: Offered) -> str:
    """Why it takes no claim now, as one word, which pending claims show; empty: it takes claims."""
    readiness = item.decision.readiness
    if item.view is None or item.view.lost:
        return DaemonReason.GPU_LOST.value
    if item.decision.offer.accepting:
        return ""
    if item.share.deleting:
        return DELETED
    return DRAINING if readiness.takes_clients else readiness.reason.value


def _trouble(item: Offered) -> str:
    readiness = item.decision.readiness
    return "" if readiness.ready else f"{readiness.reason.value}: {readiness.message}"
