"""The kubelet's side of device plugins and PodResources, on real sockets below a folder of the test's own."""

import asyncio
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc

from gpushare.agent.proto import deviceplugin_v1beta1_pb2 as plugin_messages
from gpushare.agent.proto import deviceplugin_v1beta1_pb2_grpc as plugin_services
from gpushare.agent.proto import podresources_v1_pb2 as resource_messages
from gpushare.agent.proto import podresources_v1_pb2_grpc as resource_services


class FakeKubelet(plugin_services.RegistrationServicer, resource_services.PodResourcesListerServicer):
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
        self._server: grpc.aio.Server | None = None
        self._watching: set[asyncio.Task[None]] = set()
        self._channels: list[grpc.aio.Channel] = []

    async def start(self) -> None:
        for file in self.plugins.iterdir():
            file.unlink()
        self._server = grpc.aio.server()
        plugin_services.add_RegistrationServicer_to_server(self, self._server)
        resource_services.add_PodResourcesListerServicer_to_server(self, self._server)
        paths = (self.plugins / "kubelet.sock", self.pod_resources)
        # gRPC unlinks the name it bound at some time after a server has stopped: not to hit the next one's socket.
        for path in paths:
            self._server.add_insecure_port(f"unix://{path}.new")
        await self._server.start()
        for path in paths:
            os.replace(f"{path}.new", path)  # noqa: PTH105 - a test's own small file

    async def stop(self) -> None:
        await self.stop_watching()
        for channel in self._channels:
            await channel.close()
        self._channels.clear()
        if self._server is not None:
            await self._server.stop(None)
            self._server = None
            for path in (self.plugins / "kubelet.sock", self.pod_resources):
                path.unlink()

    async def stop_watching(self) -> None:
        for task in self._watching:
            task.cancel()
        await asyncio.gather(*self._watching, return_exceptions=True)
        self._watching.clear()

    @property
    def watching(self) -> bool:
        """Whether a plugin's stream is open."""
        return bool(self._watching)

    def plugin(self) -> Any:
        """A stub for the plugin that registered last."""
        return self._stub(self.registrations[-1].endpoint)

    async def until(self, met: Any, seconds: float = 8.0) -> None:
        """Waits until `met()` holds; it is looked at after every registration and list."""
        async with asyncio.timeout(seconds), self._changed:
            await self._changed.wait_for(met)

    async def Register(self, request: Any, context: Any) -> Any:
        if self.refusals:
            self.refusals -= 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "not now")
        self.registrations.append(request)
        task = asyncio.create_task(self._watch(self._stub(request.endpoint)))
        self._watching.add(task)
        await self._notify()
        return plugin_messages.Empty()

    async def List(self, request: Any, context: Any) -> Any:
        await asyncio.sleep(self.answer_after)
        return self.listed

    async def GetAllocatableResources(self, request: Any, context: Any) -> Any:
        return self.allocatable

    def _stub(self, endpoint: str) -> Any:
        channel = grpc.aio.insecure_channel(f"unix://{self.plugins / endpoint}")
        self._channels.append(channel)
        return plugin_services.DevicePluginStub(channel)

    async def _watch(self, stub: Any) -> None:
        with suppress(grpc.aio.AioRpcError):
            async for answer in stub.ListAndWatch(plugin_messages.Empty()):
                self.lists.append({device.ID: device.health for device in answer.devices})
                await self._notify()
        self._watching = {task for task in self._watching if task is not asyncio.current_task()}
        await self._notify()

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()
