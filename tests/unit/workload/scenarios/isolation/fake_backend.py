"""A backend whose limits, results and errors a test sets."""

from typing import Any

from gpushare_workload.backend.interface import DeviceProperties, GpuError
from gpushare_workload.gpus.grant import MIB


class FakeBackend:
    """A GPU of 132 SMs as a client with limits sees it. It computes right results unless `wrong`."""

    name, simulated = "fake", True

    def __init__(self, sms: int = 32, free: int = 4000 * MIB, limit: int = 4096 * MIB, wrong: bool = False) -> None:
        self.sms, self.free, self.limit, self.wrong = sms, free, limit, wrong
        self.error: GpuError | None = None
        self.closed = False

    def device(self) -> DeviceProperties:
        return DeviceProperties("NVIDIA H200", "GPU-1", self.sms, 132, self.free, 143155 * MIB)

    def try_allocate(self, size: int) -> bool:
        return size <= self.limit

    def sum_of_squares(self, vector: Any) -> float:
        if self.error:
            raise self.error
        return float(vector @ vector) + self.wrong

    def spin(self, milliseconds: float) -> None: ...

    def synchronize(self) -> None:
        if self.error:
            raise self.error

    def close(self) -> None:
        self.closed = True
