"""One resource's device plugin towards the kubelet: its socket, its registration, its offer.

Guarantees: the kubelet hears every change of the offer and, on connecting, the present one; a kubelet that restarts,
which wipes all plugins' sockets, that appears late, or that drops the plugin, is served again within a few seconds.
Does not guarantee that a container's start was checked by us: the kubelet skips PreStartContainer between its own
restart and our registration.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from gpushare.agent.kubelet.allocation_lock import AllocationLock
from gpushare.agent.kubelet.listener import Listener
from gpushare.agent.kubelet.listing import OfferedDevice
from gpushare.agent.kubelet.preferred import preferred_slots
from gpushare.agent.kubelet.registration import Identity, RegistrationError, identity, register
from gpushare.agent.kubelet.service import DeviceService, Hooks, Preferred
from gpushare.agent.proto import deviceplugin_v1beta1_pb2_grpc as services
from gpushare.api import names

__all__ = ["DevicePlugin", "Hooks", "OfferedDevice"]

LOG = logging.getLogger(__name__)

POLL_SECONDS = 1.0
MAX_RETRY_SECONDS = 5.0
ABANDONED_SECONDS = 10.0
"""A kubelet that has not watched for so long, though it was told of the plugin, is told again."""
CLOSE_SECONDS = 1.0


class DevicePlugin:
    def __init__(
        self,
        resource: str,
        kubelet_dir: Path,
        hooks: Hooks,
        clock: Callable[[], float],
        turns: AllocationLock,
        preferred: Preferred = preferred_slots,
    ) -> None:
        """`resource`: such as gpushare.dev/inference; `kubelet_dir`: such as /var/lib/kubelet.

        `clock`: seconds; the one that times the kubelet's readings, which `settle` compares with allocations.
        """
        self._resource = resource
        directory = kubelet_dir / "device-plugins"
        self._kubelet = directory / "kubelet.sock"
        self._socket = directory / names.plugin_socket(resource)
        self._clock = clock
        self._service = DeviceService(hooks, preferred, clock, turns)
        self._listener = Listener(self._socket)
        self._registered: Identity | None = None
        self._registered_at = 0.0
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns at once; serves and registers as soon as there is a kubelet."""
        if self._task is None:
            self._task = asyncio.create_task(self._follow(), name=f"device plugin {self._resource}")

    def offer(self, devices: Sequence[OfferedDevice]) -> None:
        """Replaces what the kubelet is offered; nothing is before the first call."""
        self._service.offer(devices)

    def listed(self) -> bool:
        """Whether the kubelet is told of any device, offered or withdrawn."""
        return bool(self._service.devices)

    def promised(self) -> frozenset[str]:
        """Device ids handed out that no reading of the kubelet has settled: it may not list them yet."""
        return self._service.promised()

    def settle(self, listed: Collection[str], allocatable: Collection[str], started: float) -> None:
        """Ends promises and withdrawals by a reading of PodResources begun at `started`.

        `listed`: the ids that containers hold; `allocatable`: those that the kubelet believes to be healthy.
        """
        self._service.settle(listed, allocatable, started)

    async def stop(self) -> None:
        """Ends the streams, then closes and removes the socket."""
        await self._unfollow()
        self._service.close()
        await self._listener.close(CLOSE_SECONDS)

    async def leave(self) -> None:
        """Closes without withdrawing: the kubelet keeps its books until the next agent registers."""
        await self._unfollow()
        await self._listener.close(None)

    async def _unfollow(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _follow(self) -> None:
        failures, told = 0, ""
        while True:
            try:
                await self._look()
                failures, told = 0, ""
            except (OSError, RegistrationError) as error:
                failures += 1
                if str(error) != told:
                    LOG.warning("device plugin not registered, trying again: %s", error)
                told = str(error)
            await asyncio.sleep(min(POLL_SECONDS * 2 ** max(failures - 1, 0), MAX_RETRY_SECONDS))

    async def _look(self) -> None:
        if not self._listener.there:
            self._registered = None
            await self._listener.open(lambda server: services.add_DevicePluginServicer_to_server(self._service, server))
        # Read before registering: a kubelet that restarts meanwhile is then a different one.
        kubelet = identity(self._kubelet)
        if kubelet is None:
            self._registered = None
        elif kubelet != self._registered or self._abandoned():
            await register(self._kubelet, self._socket.name, self._resource)
            self._registered, self._registered_at = kubelet, self._clock()
            LOG.info("device plugin %s is registered with the kubelet", self._resource)

    def _abandoned(self) -> bool:
        if self._service.watchers:
            return False
        return self._clock() - max(self._registered_at, self._service.watched_at) > ABANDONED_SECONDS
