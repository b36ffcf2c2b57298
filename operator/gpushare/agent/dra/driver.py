"""Delivery by ResourceClaim on this node, as the agent drives it: slice, socket, prepared claims.

Nothing of it is there on a node without such a share: no watch, no socket, no request to an API that may not be served.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpushare.agent.dra.claims import ClaimableGpu, Claims
from gpushare.agent.dra.plugin import DraPlugin
from gpushare.agent.dra.publisher import SlicePublisher
from gpushare.agent.dra.service import DeviceHealth
from gpushare.agent.dra.slices import closed_devices, device, resource_slice, tainted
from gpushare.agent.dra.specs import ClaimSpecs
from gpushare.agent.gpus.inventory import DriverVersions, GpuView
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


class ClaimDelivery:
    def __init__(
        self,
        kube: Kube,
        node: str,
        directories: tuple[Path, Path],
        gpus: Callable[[], Iterable[ClaimableGpu]],
        pods: Callable[[], Mapping[str, Object]],
        clock: Callable[[], float],
        changed: Callable[[], None],
    ) -> None:
        """`directories`: the kubelet's, and that of CDI specs. `gpus`: those that shares have here, at this moment.

        `changed` is called when claims or slice changed.
        """
        kubelet_dir, cdi_dir = directories
        self.closed_since: dict[Uuid, float] = {}
        """GPUs that the slice in the API lets nobody have, since when that was first seen."""
        self.claims = Claims(kube, node, ClaimSpecs(cdi_dir), self._gpu, pods, changed)
        self._gpus = gpus
        self._node = node
        self._clock = clock
        self._slices = SlicePublisher(kube, node, clock, changed)
        self._plugin = DraPlugin(kubelet_dir, self.claims)
        self._offered: tuple[Offered, ...] = ()
        self._serving = False

    def offer(self, gpus: Collection[Offered]) -> None:
        """What there is to be had; told to the API by `publish`. Never waits."""
        self._offered = tuple(gpus)
        if gpus or self.claims.any:
            self._serving = True
            self._plugin.start()
            self._slices.follow()
        self._plugin.health.tell(
            DeviceHealth(self._node, names.device_name(item.decision.plan.uuid), _trouble(item)) for item in gpus
        )
        self._note_closed()

    async def publish(self, driver: DriverVersions | None, *, by_cdi: bool) -> None:
        """Makes the API's slice what was offered last; once nothing is, takes it and the socket away."""
        if not self._serving:
            return
        devices = [found for item in self._offered if (found := self._device(item, driver, by_cdi)) is not None]
        if not devices:
            await self._slices.publish(None)
        elif uid := await self._slices.node_uid():
            await self._slices.publish(resource_slice(self._node, uid, devices, self.claims.count))
        if not (self._offered or self.claims.any) and self._slices.known and self._slices.present is None:
            await self._plugin.close()
            self._serving = False

    async def close(self) -> None:
        """What is prepared stays."""
        await self._plugin.close()
        await self._slices.close()

    def _device(self, item: Offered, driver: DriverVersions | None, by_cdi: bool) -> Object | None:
        why = closed(item) if by_cdi else NO_CDI
        if item.view is not None:
            return device(item.view.info, item.share, driver, why)
        # Lost before this agent began: it stays as it was told last, for those that have a part of it.
        present = (self._slices.present or {"spec": {}})["spec"].get("devices") or ()
        name = names.device_name(item.decision.plan.uuid)
        return next((tainted(found, why) for found in present if found["name"] == name), None)

    def _note_closed(self) -> None:
        if not self._slices.known:
            return
        now, shut = self._clock(), closed_devices(self._slices.present)
        uuids = [item.decision.plan.uuid for item in self._offered]
        self.closed_since = {
            uuid: self.closed_since.get(uuid, now) for uuid in uuids if shut is None or names.device_name(uuid) in shut
        }

    def _gpu(self, device_name: str) -> ClaimableGpu | None:
        return next((gpu for gpu in self._gpus() if names.device_name(gpu.uuid) == device_name), None)


def closed(item: Offered) -> str:
    """Why it takes no claim now, in one word that those that wait are told; empty where it does."""
    verdict = item.decision.verdict
    if item.view is None or item.view.lost:
        return DaemonReason.GPU_LOST.value
    if item.decision.offer.accepting:
        return ""
    if item.share.deleting:
        return DELETED
    return DRAINING if verdict.takes_clients else verdict.reason.value


def _trouble(item: Offered) -> str:
    verdict = item.decision.verdict
    return "" if verdict.ready else f"{verdict.reason.value}: {verdict.message}"
