"""The driver's socket as the kubelet meets it, over real gRPC."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gpushare.agent.dra.allocation import ClaimRefused
from gpushare.agent.dra.plugin import DraPlugin
from gpushare.agent.dra.prepared import PreparedClaim, PreparedPart
from gpushare.agent.dra.service import DeviceHealth
from gpushare.agent.proto import (
    dra_v1_grpc,
    dra_v1_pb2,
    dra_v1beta1_grpc,
    dra_v1beta1_pb2,
    drahealth_v1_grpc,
    drahealth_v1_pb2,
    drahealth_v1alpha1_grpc,
    drahealth_v1alpha1_pb2,
)
from gpushare.agent.proto import pluginregistration_v1_grpc as registration_grpc
from gpushare.agent.proto import pluginregistration_v1_pb2 as registration
from gpushare.agent.rpc.client import RpcChannel
from gpushare.grant.model import Grant

VERSIONS = [(dra_v1_pb2, dra_v1_grpc), (dra_v1beta1_pb2, dra_v1beta1_grpc)]
HEALTH = [(drahealth_v1_pb2, drahealth_v1_grpc), (drahealth_v1alpha1_pb2, drahealth_v1alpha1_grpc)]


class Hooks:
    def __init__(self) -> None:
        self.gone: list[str] = []

    async def prepare(self, namespace: str, name: str, uid: str) -> PreparedClaim:
        if name == "bad":
            raise ClaimRefused(f"ResourceClaim {namespace}/bad is not for us")
        part = PreparedPart("GPU-0", "gpu", "n", "gpu-0", "share-1", Grant("a", 10, 2048, 1))
        return PreparedClaim(uid, namespace, name, (part,))

    def unprepare(self, uid: str) -> None:
        if uid == "stuck":
            raise OSError("disk full")
        self.gone.append(uid)


@pytest.fixture
async def served() -> AsyncIterator[tuple[DraPlugin, Hooks, Path]]:
    """A service in a folder of a short name: a socket's path may have 107 bytes."""
    hooks = Hooks()
    with tempfile.TemporaryDirectory() as name:
        socket = Path(name) / "plugins_registry" / "gpushare.dev.sock"
        socket.parent.mkdir()
        plugin = DraPlugin(Path(name), hooks, poll_seconds=0.05)
        plugin.start()
        await until(socket.exists)
        yield plugin, hooks, socket
        await plugin.close()


async def until(met: Any) -> None:
    async with asyncio.timeout(30):
        while not met():  # noqa: ASYNC110 - a file, or a few words of a test
            await asyncio.sleep(0.02)


async def test_the_socket_tells_what_it_serves(served: Any) -> None:
    _, _, socket = served
    async with RpcChannel(socket) as connection:
        stub = registration_grpc.RegistrationStub(connection)
        info = await stub.GetInfo(registration.InfoRequest())
        await stub.NotifyRegistrationStatus(registration.RegistrationStatus(plugin_registered=True))
    assert (info.type, info.name, info.endpoint) == ("DRAPlugin", "gpushare.dev", str(socket))
    assert "v1.DRAPlugin" in info.supported_versions
    assert [path.name for path in socket.parent.iterdir() if not path.name.startswith(".")] == [socket.name]


@pytest.mark.parametrize(("messages", "services"), VERSIONS, ids=["v1", "v1beta1"])
async def test_claims_are_prepared_each_for_itself(served: Any, messages: Any, services: Any) -> None:
    _, hooks, socket = served
    asked = [messages.Claim(namespace="ns", name=name, uid=f"u-{name}") for name in ("good", "bad")]
    async with RpcChannel(socket) as connection:
        stub = services.DRAPluginStub(connection)
        answer = await stub.NodePrepareResources(messages.NodePrepareResourcesRequest(claims=asked))
        stuck = messages.Claim(namespace="ns", name="stuck", uid="stuck")
        gone = await stub.NodeUnprepareResources(messages.NodeUnprepareResourcesRequest(claims=[*asked, stuck]))
    (device,) = answer.claims["u-good"].devices
    assert (list(device.request_names), device.pool_name, device.device_name) == (["gpu"], "n", "gpu-0")
    assert list(device.cdi_device_ids) == ["gpushare.dev/claim=u-good-gpu", "gpushare.dev/gpu=GPU-0"]
    assert getattr(device, "share_id", "share-1") == "share-1"
    assert answer.claims["u-bad"].error == "ResourceClaim ns/bad is not for us"
    assert {uid: answer.error for uid, answer in gone.claims.items()} == {
        "u-good": "",
        "u-bad": "",
        "stuck": "disk full",
    }
    assert hooks.gone == ["u-good", "u-bad"]


@pytest.mark.parametrize(("messages", "services"), HEALTH, ids=["v1", "v1alpha1"])
async def test_health_is_sent_at_once_and_at_every_change(served: Any, messages: Any, services: Any) -> None:
    plugin, _, socket = served
    plugin.health.set([DeviceHealth("n", "gpu-0")])
    async with asyncio.timeout(30), RpcChannel(socket) as connection, watched(connection, messages, services) as stream:
        first = (await stream.recv_message()).devices[0]
        assert (first.device.pool_name, first.device.device_name, first.health) == ("n", "gpu-0", messages.HEALTHY)
        plugin.health.set([DeviceHealth("n", "gpu-0", "GpuLost: it fell off the bus")])
        second = (await stream.recv_message()).devices[0]
        assert (second.health, second.message) == (messages.UNHEALTHY, "GpuLost: it fell off the bus")


@asynccontextmanager
async def watched(connection: RpcChannel, messages: Any, services: Any) -> AsyncIterator[Any]:
    async with services.DRAResourceHealthStub(connection).NodeWatchResources.open() as stream:
        await stream.send_message(messages.NodeWatchResourcesRequest(), end=True)
        yield stream
        await stream.cancel()


async def test_a_removed_socket_comes_back_and_a_closed_one_does_not(served: Any) -> None:
    plugin, _, socket = served
    socket.unlink()
    await until(socket.exists)
    async with RpcChannel(socket) as connection:
        await registration_grpc.RegistrationStub(connection).GetInfo(registration.InfoRequest())
    await plugin.close()
    assert not socket.exists()
