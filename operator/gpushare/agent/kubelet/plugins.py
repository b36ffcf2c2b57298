"""The device plugins of this node: one for each share that has a GPU here, and one for the MPS pods."""

from collections.abc import Callable, Mapping, Sequence

from gpushare.agent.kubelet.holdings import Holdings, KubeletView, ShareGpu, Slots, by_gpu
from gpushare.agent.kubelet.plugin import DevicePlugin, Hooks, OfferedDevice
from gpushare.api import names
from gpushare.api.gpunode import ShareName

MPS_DEVICES = 64
"""One for each MPS pod that could ever run here at a time: shares of this node, old and new pods of an update."""

PluginFactory = Callable[[str, Hooks], DevicePlugin]


class DevicePlugins:
    def __init__(self, factory: PluginFactory) -> None:
        """`factory`: from a resource's name and its hooks to a plugin that has not started."""
        self._factory = factory
        self._plugins: dict[str, DevicePlugin] = {}
        self._offered: dict[str, Sequence[OfferedDevice]] = {}

    async def apply(
        self, offers: Mapping[ShareName, Sequence[OfferedDevice]], hooks: Callable[[str], Hooks], *, mps: bool
    ) -> bool:
        """Starts, changes and stops plugins until they offer `offers`; True if any offer changed.

        `hooks`: of a new plugin, by its resource. `mps`: whether MPS pods can be served. A plugin without an offer is
        stopped once the kubelet's list has none of its devices.
        """
        desired: dict[str, Sequence[OfferedDevice]] = {names.slot_resource(share): offers[share] for share in offers}
        desired[names.MPS_RESOURCE] = [OfferedDevice(f"mps-{number}", mps, None) for number in range(MPS_DEVICES)]
        for resource in self._plugins.keys() - desired.keys():
            if self._plugins[resource].listed():
                desired[resource] = ()
            else:
                await self._plugins.pop(resource).stop()
                self._offered.pop(resource, None)
        changed = False
        for resource, devices in desired.items():
            changed |= await self._offer(resource, devices, hooks)
        return changed

    async def leave(self) -> None:
        """Stops serving and withdraws nothing: the next agent goes on."""
        for plugin in self._plugins.values():
            await plugin.leave()

    def pending(self) -> dict[ShareGpu, Slots]:
        """Slots handed out that no reading of the kubelet has settled."""
        return by_gpu(
            [(resource, device_id) for resource, plugin in self._plugins.items() for device_id in plugin.pending()]
        )

    def problem(self, share: ShareName) -> str:
        """Why the kubelet cannot be offered the share's slots; empty when it can."""
        plugin = self._plugins.get(names.slot_resource(share))
        return plugin.problem if plugin is not None else ""

    def settle(self, view: KubeletView) -> None:
        """Ends the pending allocations and withdrawals that this reading settles."""
        listed, allocatable = by_resource(view.held), by_resource(view.allocatable)
        for resource, plugin in self._plugins.items():
            plugin.settle(listed.get(resource, ()), allocatable.get(resource, ()), view.started)

    async def _offer(self, resource: str, devices: Sequence[OfferedDevice], hooks: Callable[[str], Hooks]) -> bool:
        changed = self._offered.get(resource) != devices
        plugin = self._plugins.get(resource)
        if plugin is None:
            plugin = self._factory(resource, hooks(resource))
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
