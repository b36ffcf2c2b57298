"""The device plugins of this node: one for each share that has a GPU here, and one for our own MPS pods."""

import logging
from collections.abc import Callable, Mapping, Sequence

from gpushare.agent.kubelet.holdings import Holdings, KubeletView, Slots, by_gpu
from gpushare.agent.kubelet.plugin import DevicePlugin, Hooks, OfferedDevice
from gpushare.api import names
from gpushare.api.gpunode import ShareName, Uuid

LOG = logging.getLogger(__name__)

MPS_DEVICES = 64
"""One for each MPS pod that could ever run here at a time: shares of this node, old and new pods of an update."""

PluginFactory = Callable[[str, Hooks], DevicePlugin]


class DevicePlugins:
    def __init__(self, factory: PluginFactory, hooks: Callable[[ShareName], Hooks], mps_hooks: Hooks) -> None:
        self._factory = factory
        self._hooks = hooks
        self._mps_hooks = mps_hooks
        self._plugins: dict[str, DevicePlugin] = {}
        self._offered: dict[str, Sequence[OfferedDevice]] = {}

    async def apply(self, offers: Mapping[ShareName, Sequence[OfferedDevice]], *, mps: bool) -> bool:
        """Makes the plugins those of `offers`; True if any offer changed. `mps`: whether MPS pods can be served.

        A plugin that is not needed any more goes once the kubelet is told of none of its devices.
        """
        wanted: dict[str, Sequence[OfferedDevice]] = {names.slot_resource(share): offers[share] for share in offers}
        wanted[names.MPS_RESOURCE] = [OfferedDevice(f"mps-{number}", mps, None) for number in range(MPS_DEVICES)]
        for resource in self._plugins.keys() - wanted.keys():
            if self._plugins[resource].listed():
                wanted[resource] = ()
            else:
                await self._plugins.pop(resource).stop()
                self._offered.pop(resource, None)
        changed = False
        for resource, devices in wanted.items():
            changed |= await self._offer(resource, devices)
        return changed

    async def leave(self) -> None:
        """Stops serving and withdraws nothing: the next agent goes on."""
        for plugin in self._plugins.values():
            await plugin.leave()

    def promised(self) -> dict[tuple[ShareName, Uuid], Slots]:
        """Slots handed out that no reading of the kubelet has settled."""
        return by_gpu(
            [(resource, device_id) for resource, plugin in self._plugins.items() for device_id in plugin.promised()]
        )

    def settle(self, view: KubeletView) -> None:
        """Ends the promises and withdrawals that this reading settles, on the clock that the plugins were made with."""
        listed, allocatable = by_resource(view.held), by_resource(view.allocatable)
        for resource, plugin in self._plugins.items():
            plugin.settle(listed.get(resource, ()), allocatable.get(resource, ()), view.started)

    async def _offer(self, resource: str, devices: Sequence[OfferedDevice]) -> bool:
        changed = self._offered.get(resource) != devices
        plugin = self._plugins.get(resource)
        if plugin is None:
            share = names.share_of_resource(resource)
            plugin = self._factory(resource, self._mps_hooks if share is None else self._hooks(share))
            # The offer first: a plugin that registers with nothing would make the kubelet forget held slots.
            plugin.offer(list(devices))
            await plugin.start()
            self._plugins[resource] = plugin
        elif changed:
            plugin.offer(list(devices))
        self._offered[resource] = devices
        return changed


def by_resource(holdings: Holdings) -> dict[str, set[str]]:
    """The device ids of each resource."""
    grouped: dict[str, set[str]] = {}
    for (share, uuid), slots in holdings.items():
        grouped.setdefault(names.slot_resource(share), set()).update(names.slot_id(uuid, slot) for slot in slots)
    return grouped
