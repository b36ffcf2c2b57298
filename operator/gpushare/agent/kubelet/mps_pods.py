"""The devices of the MPS pods: every GPU's device node, and nothing to wait for."""

from collections.abc import Callable, Collection, Mapping, Sequence

from gpushare.agent.gpus.devices import Devices
from gpushare.agent.gpus.edits import ContainerEdits
from gpushare.agent.gpus.view import GpuView
from gpushare.agent.kubelet.listing import preferred_slots
from gpushare.api.gpunode import Uuid


class MpsDevices:
    def __init__(self, devices: Devices, views: Callable[[], Mapping[Uuid, GpuView]]) -> None:
        """`views`: all GPUs of the node, as NVML shows them."""
        self._devices = devices
        self._views = views

    def has(self, device_ids: Collection[str]) -> bool:
        return True

    def edits(self, device_ids: Sequence[str]) -> ContainerEdits:
        problem = self._devices.problem() or self._devices.daemon_problem()
        if problem:
            raise LookupError(problem)
        return self._devices.mps(self._views())

    def allocated(self, device_ids: Sequence[str]) -> None:
        pass

    def prefer(self, available: Collection[str], must_include: Collection[str], size: int) -> list[str]:
        return preferred_slots(available, must_include, size)

    def not_ready(self, device_ids: Sequence[str]) -> str | None:
        return None
