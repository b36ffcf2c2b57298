"""Telling the kubelet of a device plugin, and noticing that a kubelet is not the one that was told."""

from pathlib import Path

import grpc

from gpushare.agent.proto import deviceplugin_v1beta1_pb2 as messages
from gpushare.agent.proto import deviceplugin_v1beta1_pb2_grpc as services

VERSION = "v1beta1"
SECONDS = 12.0
"""The kubelet connects back to the plugin before it answers, with a limit of 10 s."""
FRESH = [("grpc.use_local_subchannel_pool", 1)]
"""Channel options of a connection of its own: gRPC would share one with earlier channels, and its back-off with it."""

Identity = tuple[int, int]


class RegistrationError(Exception):
    """The kubelet refused or did not answer. The text names the resource and gRPC's reason."""


def identity(path: Path) -> Identity | None:
    """Tells one socket from the next of that name; None: there is none. An inode number alone may be used again."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_ctime_ns


def options() -> messages.DevicePluginOptions:
    return messages.DevicePluginOptions(pre_start_required=True, get_preferred_allocation_available=True)


async def register(kubelet: Path, endpoint: str, resource: str, seconds: float = SECONDS) -> None:
    """`kubelet`: its registration socket; `endpoint`: the file name of the plugin's, beside it. RegistrationError."""
    request = messages.RegisterRequest(version=VERSION, endpoint=endpoint, resource_name=resource, options=options())
    async with grpc.aio.insecure_channel(f"unix://{kubelet}", options=FRESH) as channel:
        try:
            await services.RegistrationStub(channel).Register(request, timeout=seconds)
        except grpc.aio.AioRpcError as error:
            raise RegistrationError(f"{resource} at {kubelet}: {error.code().name}: {error.details()}") from error
