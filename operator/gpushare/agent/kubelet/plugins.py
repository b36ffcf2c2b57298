"""The device plugins of this node: one for the resource of each share that has a GPU here, and one for the MPS pods."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from gpushare.agent.kubelet.listing import OfferedDevice
from gpushare.agent.kubelet.plugin import DevicePlugin
from gpushare.agent.kubelet.service import DeviceKind
from gpushare.agent.podresources.holdings import KubeletView, ShareGpu, Slots, WholeNames, by_gpu
from gpushare.agent.reconcile.offers import GpuOffer
from gpushare.api import names

MPS_DEVICES = 64
"""One for each MPS pod that could ever run here at a time: shares of this node, old and new pods of an update."""

PluginFactory = Callable[[str, Sequence[DeviceKind]], DevicePlugin]
"""Makes a plugin, which has not started, from a resource's name and the kinds of its devices."""


def offered_devices(offers: Iterable[GpuOffer]) -> list[OfferedDevice]:
    return [
        OfferedDevice(offer.uuid if offer.whole else names.slot_id(offer.uuid, slot), healthy, offer.numa_node)
        for offer in offers
        for slot, healthy in offer.slots().items()
    ]


class DevicePlugins:
    def __init__(self, factory: PluginFactory, kinds: Callable[[str], Sequence[DeviceKind]]) -> None:
        """`kinds`: of a resource's devices."""
        self._factory = factory
        self._kinds = kinds
        self._plugins: dict[str, DevicePlugin] = {}
        self._offered: dict[str, Sequence[OfferedDevice]] = {}

    async def apply(self, offers: Mapping[str, Iterable[GpuOffer]], *, mps: bool) -> bool:
        """Starts, changes and stops plugins until they offer `offers`, by resource; True if any offer changed.

        `mps`: whether MPS pods can be served. A plugin without an offer is stopped once the kubelet's list has none of
        its devices.
        """
        desired: dict[str, Sequence[OfferedDevice]] = {
            resource: offered_devices(gpus) for resource, gpus in offers.items()
        }
        desired[names.MPS_RESOURCE] = [OfferedDevice(f"mps-{number}", mps, None) for number in range(MPS_DEVICES)]
        for resource in self._plugins.keys() - desired.keys():
            if self._plugins[resource].listed():
                desired[resource] = ()
            else:
                await self._plugins.pop(resource).stop()
                self._offered.pop(resource, None)
        changed = False
        for resource, devices in desired.items():
            changed |= await self._offer(resource, devices)
        return changed

    async def hand_over(self) -> None:
        """Stops serving and withdraws nothing: the next agent goes on."""
        for plugin in self._plugins.values():
            await plugin.hand_over()

    def serves(self, resource: str) -> bool:
        """Whether a plugin of it has started."""
        return resource in self._plugins

    def pending(self, whole: WholeNames) -> dict[ShareGpu, Slots]:
        """Slots and whole GPUs handed out that no reading of the kubelet has settled."""
        ids = [(resource, device_id) for resource, plugin in self._plugins.items() for device_id in plugin.pending()]
        return by_gpu(ids, whole)

    def problem(self, resource: str) -> str:
        """Why the kubelet cannot be offered the resource; empty when it can."""
        plugin = self._plugins.get(resource)
        return plugin.problem if plugin is not None else ""

    def settle(self, view: KubeletView) -> None:
        """Ends the pending allocations and withdrawals that this reading settles."""
        for resource, plugin in self._plugins.items():
            listed, allocatable = view.held_ids.get(resource, ()), view.allocatable_ids.get(resource, ())
            plugin.settle(listed, allocatable, view.started)

    async def _offer(self, resource: str, devices: Sequence[OfferedDevice]) -> bool:
        changed = self._offered.get(resource) != devices
        plugin = self._plugins.get(resource)
        if plugin is None:
            plugin = self._factory(resource, self._kinds(resource))
            # The offer first: a plugin that registers with nothing would make the kubelet forget held slots.
            plugin.offer(list(devices))
            await plugin.start()
            self._plugins[resource] = plugin
        elif changed:
            plugin.offer(list(devices))
        self._offered[resource] = devices
        return changed
