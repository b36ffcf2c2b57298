"""The kubelet's side of device plugins and PodResources, on real sockets below a folder of the test's own."""

import asyncio
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from grpclib.const import Status
from grpclib.exceptions import GRPCError, StreamTerminatedError

from gpushare.agent.proto import deviceplugin_v1beta1_grpc as plugin_services
from gpushare.agent.proto import deviceplugin_v1beta1_pb2 as plugin_messages
from gpushare.agent.proto import podresources_v1_grpc as resource_services
from gpushare.agent.proto import podresources_v1_pb2 as resource_messages
from gpushare.agent.rpc.client import RpcChannel
from gpushare.agent.rpc.server import RpcServer, received


class FakeKubelet:
    """Wipes plugins' sockets when it starts, watches each registered plugin, and keeps every list that it gets."""

    def __init__(self, kubelet_dir: Path) -> None:
        self.plugins = kubelet_dir / "device-plugins"
        self.pod_resources = kubelet_dir / "pod-resources" / "kubelet.sock"
        for folder in (self.plugins, self.pod_resources.parent):
            folder.mkdir(parents=True, exist_ok=True)
        self.registrations: list[Any] = []
        self.lists: list[dict[str, str]] = []
        self.refusals = 0
        self.listed = resource_messages.ListPodResourcesResponse()
        self.allocatable = resource_messages.AllocatableResourcesResponse()
        self.answer_after = 0.0
        self._changed = asyncio.Condition()
        self._servers: list[RpcServer] = []
        self._watching: set[asyncio.Task[None]] = set()
        self._channels: list[RpcChannel] = []

    async def start(self) -> None:
        for file in self.plugins.iterdir():
            file.unlink()
        services = {self.plugins / "kubelet.sock": _Registration(self), self.pod_resources: _PodResources(self)}
        for path, service in services.items():
            server = RpcServer([service])
            await server.start(Path(f"{path}.new"))
            os.replace(f"{path}.new", path)  # noqa: PTH105 - a test's own small file
            self._servers.append(server)

    async def stop(self) -> None:
        await self.stop_watching()
        for channel in self._channels:
            channel.close()
        self._channels.clear()
        if self._servers:
            for server in self._servers:
                await server.stop(None)
            self._servers.clear()
            for path in (self.plugins / "kubelet.sock", self.pod_resources):
                path.unlink()

    async def stop_watching(self) -> None:
        for task in self._watching:
            task.cancel()
        await asyncio.gather(*self._watching, return_exceptions=True)
        self._watching.clear()

    @property
    def watching(self) -> bool:
        """Tells whether a plugin's stream is open."""
        return bool(self._watching)

    def plugin(self) -> Any:
        """A stub for the plugin that registered last."""
        return self._stub(self.registrations[-1].endpoint)

    async def until(self, met: Any, seconds: float = 8.0) -> None:
        """Waits until `met()` holds; it is looked at after every registration and list."""
        async with asyncio.timeout(seconds), self._changed:
            await self._changed.wait_for(met)

    async def register(self, request: Any) -> None:
        if self.refusals:
            self.refusals -= 1
            raise GRPCError(Status.UNAVAILABLE, "not now")
        self.registrations.append(request)
        task = asyncio.create_task(self._watch(self._stub(request.endpoint)))
        self._watching.add(task)
        await self._notify()

    def _stub(self, endpoint: str) -> Any:
        channel = RpcChannel(self.plugins / endpoint)
        self._channels.append(channel)
        return plugin_services.DevicePluginStub(channel)

    async def _watch(self, stub: Any) -> None:
        with suppress(GRPCError, StreamTerminatedError, OSError):
            async with stub.ListAndWatch.open() as stream:
                await stream.send_message(plugin_messages.Empty(), end=True)
                async for answer in stream:
                    self.lists.append({device.ID: device.health for device in answer.devices})
                    await self._notify()
        self._watching = {task for task in self._watching if task is not asyncio.current_task()}
        await self._notify()

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()


class _Registration(plugin_services.RegistrationBase):
    def __init__(self, kubelet: FakeKubelet) -> None:
        self._kubelet = kubelet

    async def Register(self, stream: Any) -> None:
        await self._kubelet.register(await received(stream))
        await stream.send_message(plugin_messages.Empty())


class _PodResources(resource_services.PodResourcesListerBase):
    def __init__(self, kubelet: FakeKubelet) -> None:
        self._kubelet = kubelet

    async def List(self, stream: Any) -> None:
        await asyncio.sleep(self._kubelet.answer_after)
        await stream.send_message(self._kubelet.listed)

    async def GetAllocatableResources(self, stream: Any) -> None:
        await stream.send_message(self._kubelet.allocatable)

    async def Get(self, stream: Any) -> None:
        raise GRPCError(Status.UNIMPLEMENTED)
