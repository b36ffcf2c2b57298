"""The DRA driver's gRPC services: the kubelet's questions, answered by `ClaimPreparer`.

One socket serves the plugin registration, both versions of the plugin interface, whose messages are alike, and both
versions of the devices' health. A claim that cannot be served fails alone, with a sentence that says why.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpushare.agent.dra.allocation import ClaimRefused
from gpushare.agent.dra.claims import ClaimPreparer
from gpushare.agent.dra.prepared import PreparedClaim, cdi_devices
from gpushare.agent.proto import dra_v1_grpc, dra_v1_pb2, dra_v1beta1_grpc, dra_v1beta1_pb2
from gpushare.agent.proto import drahealth_v1_grpc as health_v1_grpc
from gpushare.agent.proto import drahealth_v1_pb2 as health_v1
from gpushare.agent.proto import drahealth_v1alpha1_grpc as health_v1alpha1_grpc
from gpushare.agent.proto import drahealth_v1alpha1_pb2 as health_v1alpha1
from gpushare.agent.proto import pluginregistration_v1_grpc as registration_grpc
from gpushare.agent.proto import pluginregistration_v1_pb2 as registration
from gpushare.agent.rpc.server import received
from gpushare.api import names

LOG = logging.getLogger(__name__)

SERVICES = ("v1.DRAPlugin", "v1beta1.DRAPlugin", "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
"""The services by the kubelet's names; it uses the newest that it knows."""
HEALTH_SECONDS = 10.0
"""Health is sent this often: after 30 s of silence the kubelet takes a device's health for unknown."""
MESSAGE = 1024


@dataclass(frozen=True, slots=True)
class DeviceHealth:
    """`device`: its name in the ResourceSlice. `trouble`: empty: it is healthy."""

    pool: str
    device: str
    trouble: str = ""


class Health:
    """The health of all devices; streams wake up when it changes."""

    def __init__(self) -> None:
        self.devices: tuple[DeviceHealth, ...] = ()
        self._changed = asyncio.Event()

    def set(self, devices: Iterable[DeviceHealth]) -> None:
        current = tuple(devices)
        if current != self.devices:
            self.devices = current
            self._changed.set()
            self._changed = asyncio.Event()

    async def reports(self) -> AsyncIterator[tuple[DeviceHealth, ...]]:
        """The first at once, then one at every change and every ten seconds."""
        while True:
            changed = self._changed
            yield self.devices
            try:
                async with asyncio.timeout(HEALTH_SECONDS):
                    await changed.wait()
            except TimeoutError:
                continue


class Registration(registration_grpc.RegistrationBase):  # type: ignore[misc]
    """Answers the kubelet's question which plugin the socket serves."""

    def __init__(self, endpoint: Path) -> None:
        """`endpoint`: the socket as the kubelet sees it."""
        self._endpoint = endpoint

    async def GetInfo(self, stream: Any) -> None:
        info = registration.PluginInfo(
            type="DRAPlugin", name=names.DRA_DRIVER, endpoint=str(self._endpoint), supported_versions=SERVICES
        )
        await stream.send_message(info)

    async def NotifyRegistrationStatus(self, stream: Any) -> None:
        request = await received(stream)
        if not request.plugin_registered:
            LOG.error("the kubelet refuses the DRA plugin: %s", request.error or "it gives no reason")
        await stream.send_message(registration.RegistrationStatusResponse())


class _Plugin:
    """`messages`: the generated module of the served version."""

    messages: Any

    def __init__(self, preparer: ClaimPreparer) -> None:
        self._preparer = preparer

    async def NodePrepareResources(self, stream: Any) -> None:
        request = await received(stream)
        answers = await asyncio.gather(*(self._prepare(claim) for claim in request.claims))
        await stream.send_message(self.messages.NodePrepareResourcesResponse(claims=dict(answers)))

    async def NodeUnprepareResources(self, stream: Any) -> None:
        request = await received(stream)
        claims = {claim.uid: self._unprepare(claim) for claim in request.claims}
        await stream.send_message(self.messages.NodeUnprepareResourcesResponse(claims=claims))

    async def _prepare(self, claim: Any) -> tuple[str, Any]:
        answer = self.messages.NodePrepareResourceResponse
        try:
            prepared = await self._preparer.prepare(claim.namespace, claim.name, claim.uid)
        except (ClaimRefused, OSError) as error:
            return claim.uid, answer(error=str(error))
        return claim.uid, answer(devices=[self._device(item) for item in _devices(prepared)])

    def _unprepare(self, claim: Any) -> Any:
        try:
            self._preparer.unprepare(claim.uid)
        except OSError as error:
            return self.messages.NodeUnprepareResourceResponse(error=str(error))
        return self.messages.NodeUnprepareResourceResponse()

    def _device(self, fields: Mapping[str, Any]) -> Any:
        known = self.messages.Device.DESCRIPTOR.fields_by_name
        return self.messages.Device(**{name: value for name, value in fields.items() if name in known and value})


class PluginV1(_Plugin, dra_v1_grpc.DRAPluginBase):  # type: ignore[misc]
    messages = dra_v1_pb2


class PluginV1beta1(_Plugin, dra_v1beta1_grpc.DRAPluginBase):  # type: ignore[misc]
    messages = dra_v1beta1_pb2


class _HealthService:
    messages: Any

    def __init__(self, health: Health) -> None:
        self._health = health

    async def NodeWatchResources(self, stream: Any) -> None:
        async for devices in self._health.reports():
            report = self.messages.NodeWatchResourcesResponse(devices=[self._device(item) for item in devices])
            await stream.send_message(report)

    def _device(self, item: DeviceHealth) -> Any:
        return self.messages.DeviceHealth(
            device=self.messages.DeviceIdentifier(pool_name=item.pool, device_name=item.device),
            health=self.messages.UNHEALTHY if item.trouble else self.messages.HEALTHY,
            last_updated_time=int(time.time()),
            message=item.trouble[:MESSAGE],
        )


class HealthV1(_HealthService, health_v1_grpc.DRAResourceHealthBase):  # type: ignore[misc]
    messages = health_v1


class HealthV1alpha1(_HealthService, health_v1alpha1_grpc.DRAResourceHealthBase):  # type: ignore[misc]
    messages = health_v1alpha1


def services(endpoint: Registration, preparer: ClaimPreparer, health: Health) -> tuple[Any, ...]:
    """All that the socket serves."""
    return endpoint, PluginV1(preparer), PluginV1beta1(preparer), HealthV1(health), HealthV1alpha1(health)


def _devices(prepared: PreparedClaim) -> Iterable[dict[str, Any]]:
    for part in prepared.parts:
        yield {
            "request_names": [part.request],
            "pool_name": part.pool,
            "device_name": part.device,
            "cdi_device_ids": cdi_devices(prepared.uid, part),
            "share_id": part.share_id,
        }
