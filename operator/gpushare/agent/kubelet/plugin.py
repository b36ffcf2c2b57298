"""One resource's device plugin: its socket, its registration with the kubelet, its offer.

Guarantees: the kubelet gets every change of the offer and, on connecting, the present one; a kubelet that restarts,
which wipes all plugins' sockets, that appears late, or that drops the plugin, is served again within a few seconds.
Does not guarantee that we checked a container's start: the kubelet skips PreStartContainer between its own restart and
our registration.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpushare.agent.kubelet.allocation_lock import AllocationLock
from gpushare.agent.kubelet.listing import OfferedDevice
from gpushare.agent.kubelet.service import (
    READY_POLL_SECONDS,
    READY_SECONDS,
    UNMEASURED,
    AllocationMeters,
    DeviceKind,
    DeviceService,
    options,
)
from gpushare.agent.proto import deviceplugin_v1beta1_grpc as services
from gpushare.agent.proto import deviceplugin_v1beta1_pb2 as messages
from gpushare.agent.rpc.client import RpcChannel, RpcError, ask
from gpushare.agent.rpc.sockets import Identity, Listener, identity
from gpushare.api import names
from gpushare.messages.log_on_change import LogOnChange

LOG = logging.getLogger(__name__)

VERSION = "v1beta1"
REGISTER_SECONDS = 12.0
"""The kubelet connects back to the plugin before it answers, with a limit of 10 s."""
CLOSE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class PluginTimes:
    """Seconds. `max_retry`: between two registrations at most. `ready`, `ready_poll`: of PreStartContainer's wait."""

    poll: float = 1.0
    max_retry: float = 5.0
    abandoned: float = 10.0
    """A kubelet that has not watched for so long although the plugin is registered gets another registration."""
    ready: float = READY_SECONDS
    ready_poll: float = READY_POLL_SECONDS


class RegistrationError(Exception):
    """The kubelet refused or did not answer. The text names the resource and gRPC's reason."""


class DevicePlugin:
    """`problem`: why its socket cannot be made, so that no kubelet gets the offer; empty when it could."""

    def __init__(
        self,
        resource: str,
        directory: Path,
        kinds: Sequence[DeviceKind],
        clock: Callable[[], float],
        lock: AllocationLock,
        meters: AllocationMeters = UNMEASURED,
        times: PluginTimes = PluginTimes(),
    ) -> None:
        """`resource`: such as gpushare.dev/inference; `directory`: the kubelet's device-plugins. `kinds`: of its
        devices, see DeviceService.

        `clock`: seconds; the one that times the readings of the kubelet that `settle` gets.
        """
        self.problem = ""
        self._resource = resource
        self._kubelet = directory / "kubelet.sock"
        self._socket = directory / names.plugin_socket(resource)
        self._clock = clock
        self._times = times
        self._service = DeviceService(kinds, clock, lock, meters, times.ready, times.ready_poll)
        self._listener = Listener(self._socket)
        self._problems = LogOnChange(LOG)
        self._registered: Identity | None = None
        self._registered_at = 0.0
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns at once; serves and registers as soon as there is a kubelet."""
        if self._task is None:
            self._task = asyncio.create_task(self._follow(), name=f"device plugin {self._resource}")

    def offer(self, devices: Sequence[OfferedDevice]) -> None:
        """Replaces the offer, which is empty before the first call."""
        self._service.offer(devices)

    def listed(self) -> bool:
        """Whether the kubelet's list has any device, offered or withdrawn."""
        return bool(self._service.devices)

    def pending(self) -> frozenset[str]:
        """See DeviceService."""
        return self._service.pending()

    def settle(self, listed: Collection[str], allocatable: Collection[str], started: float) -> None:
        """See DeviceService."""
        self._service.settle(listed, allocatable, started)

    async def stop(self) -> None:
        """Ends the streams, then closes and removes the socket."""
        await self._unfollow()
        self._service.close()
        await self._listener.close(CLOSE_SECONDS)

    async def hand_over(self) -> None:
        """Closes without withdrawing: the kubelet keeps its record of devices until the next agent registers."""
        await self._unfollow()
        await self._listener.close(None)

    async def _unfollow(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _follow(self) -> None:
        failures = 0
        while True:
            try:
                await self._serve()
                failures = 0
                self._problems.clear()
            except (OSError, RegistrationError) as error:
                failures += 1
                self._problems.log("device plugin not registered, trying again: %s", error)
            await asyncio.sleep(min(self._times.poll * 2 ** max(failures - 1, 0), self._times.max_retry))

    async def _serve(self) -> None:
        """Opens the socket and registers it, where either is missing."""
        if not self._listener.in_place:
            self._registered = None
            await self._open()
        # Read before registering: a kubelet that restarts meanwhile has another identity.
        kubelet = identity(self._kubelet)
        if kubelet is None:
            self._registered = None
        elif kubelet != self._registered or self._abandoned():
            await register(self._kubelet, self._socket.name, self._resource)
            self._registered, self._registered_at = kubelet, self._clock()
            LOG.info("device plugin %s is registered with the kubelet", self._resource)

    async def _open(self) -> None:
        try:
            await self._listener.open([self._service])
        except OSError as error:
            self.problem = str(error)
            raise
        self.problem = ""

    def _abandoned(self) -> bool:
        quiet = self._clock() - max(self._registered_at, self._service.watched_at)
        return not self._service.watchers and quiet > self._times.abandoned


async def register(kubelet: Path, endpoint: str, resource: str, seconds: float = REGISTER_SECONDS) -> None:
    """`kubelet`: its registration socket; `endpoint`: file name of the plugin's socket beside it. RegistrationError."""
    request = messages.RegisterRequest(version=VERSION, endpoint=endpoint, resource_name=resource, options=options())
    async with RpcChannel(kubelet) as channel:
        try:
            await ask(services.RegistrationStub(channel).Register, request, seconds)
        except RpcError as error:
            raise RegistrationError(f"{resource} at {kubelet}: {error}") from error
