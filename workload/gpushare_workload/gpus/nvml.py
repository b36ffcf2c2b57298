"""The monitor of a real GPU, through NVIDIA's binding (`nvidia-ml-py`, imported as `pynvml`)."""

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

from gpushare_workload.gpus.monitor import GpuMonitorError, GpuUsage, ListedProcesses, index_of

MIB = 1024 * 1024
REASONS = {
    0x1: "idle",
    0x2: "applications-clocks",
    0x4: "power-cap",
    0x8: "hardware-slowdown",
    0x10: "sync-boost",
    0x20: "thermal-slowdown",
    0x40: "hardware-thermal-slowdown",
    0x80: "power-brake",
    0x100: "display-clock",
}
"""nvmlClocksEventReasons of nvml.h."""


def reasons(mask: int) -> list[str]:
    """The names of the bits that are set; an unknown bit is named by its value."""
    bits = [1 << place for place in range(mask.bit_length()) if mask >> place & 1]
    return [REASONS.get(bit, f"reason {bit:#x}") for bit in bits]


class NvmlMonitor:
    """One GPU, through one NVML handle."""

    simulated = False

    def __init__(self, library: Any, handle: Any) -> None:
        self._lib, self._handle = library, handle

    @classmethod
    def open(cls, chosen: str) -> "NvmlMonitor | None":
        """The monitor of the GPU that `chosen` (index or UUID) names; None on a machine without NVML."""
        try:
            library: Any = import_module("pynvml")
            library.nvmlInit()
        except (ImportError, OSError):
            return None
        except library.NVMLError:
            return None
        try:
            handles = [library.nvmlDeviceGetHandleByIndex(index) for index in range(library.nvmlDeviceGetCount())]
            uuids = [str(library.nvmlDeviceGetUUID(handle)) for handle in handles]
        except library.NVMLError as error:
            raise GpuMonitorError(str(error)) from error
        return cls(library, handles[index_of(chosen, uuids)])

    @property
    def uuid(self) -> str:
        return str(self._ask(self._lib.nvmlDeviceGetUUID))

    def processes(self) -> ListedProcesses:
        """NVML also lists MPS clients among the compute processes (measured); they are left out there."""
        clients = _by_pid(self._newest("nvmlDeviceGetMPSComputeRunningProcesses"))
        compute = _by_pid(self._newest("nvmlDeviceGetComputeRunningProcesses"))
        return ListedProcesses(clients, {pid: mib for pid, mib in compute.items() if pid not in clients})

    def usage(self) -> GpuUsage:
        """NVML's utilisation is, under MPS too, that of the whole GPU; it has none for a client (measured)."""
        rates = self._or_none(self._lib.nvmlDeviceGetUtilizationRates)
        used = int(self._ask(self._lib.nvmlDeviceGetMemoryInfo).used) // MIB
        return GpuUsage(used, None if rates is None else float(rates.gpu))

    def compute_mode(self) -> str:
        return self._modes()[self._ask(self._lib.nvmlDeviceGetComputeMode)]

    def set_compute_mode(self, mode: str) -> None:
        number = {name: number for number, name in self._modes().items()}[mode]
        self._ask(self._lib.nvmlDeviceSetComputeMode, number)

    def clocks(self) -> dict[str, Any]:
        lib = self._lib
        mask = self._or_none(lib.nvmlDeviceGetCurrentClocksEventReasons)
        power = self._or_none(lib.nvmlDeviceGetPowerUsage)
        return {
            "sm_mhz": self._or_none(lib.nvmlDeviceGetClockInfo, lib.NVML_CLOCK_SM),
            "memory_mhz": self._or_none(lib.nvmlDeviceGetClockInfo, lib.NVML_CLOCK_MEM),
            "power_watts": None if power is None else round(power / 1000),
            "celsius": self._or_none(lib.nvmlDeviceGetTemperature, lib.NVML_TEMPERATURE_GPU),
            "reasons": reasons(mask or 0),
        }

    def facts(self) -> dict[str, Any]:
        lib = self._lib
        limit = self._or_none(lib.nvmlDeviceGetPowerManagementLimit)
        persistence = self._or_none(lib.nvmlDeviceGetPersistenceMode)
        cuda = int(lib.nvmlSystemGetCudaDriverVersion())
        return {
            "product": str(self._ask(lib.nvmlDeviceGetName)),
            "uuid": self.uuid,
            "memory_mib": int(self._ask(lib.nvmlDeviceGetMemoryInfo).total) // MIB,
            "driver": str(lib.nvmlSystemGetDriverVersion()),
            "cuda_of_driver": f"{cuda // 1000}.{cuda % 1000 // 10}",
            "sm_mhz_max": self._or_none(lib.nvmlDeviceGetMaxClockInfo, lib.NVML_CLOCK_SM),
            "memory_mhz_max": self._or_none(lib.nvmlDeviceGetMaxClockInfo, lib.NVML_CLOCK_MEM),
            "power_limit_watts": None if limit is None else round(limit / 1000),
            "persistence": None if persistence is None else bool(persistence),
            "compute_mode": self.compute_mode(),
        }

    def _modes(self) -> dict[int, str]:
        lib = self._lib
        return {
            lib.NVML_COMPUTEMODE_DEFAULT: "Default",
            lib.NVML_COMPUTEMODE_EXCLUSIVE_THREAD: "ExclusiveProcess",  # the driver treats it as that
            lib.NVML_COMPUTEMODE_PROHIBITED: "Prohibited",
            lib.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS: "ExclusiveProcess",
        }

    def _newest(self, name: str) -> Iterable[Any]:
        """The processes by the newest version of the call that the driver supports."""
        for version in ("_v3", "_v2"):
            processes = self._or_none(getattr(self._lib, name + version))
            if processes is not None:
                return list(processes)
        return []

    def _or_none(self, call: Callable[..., Any], *arguments: Any) -> Any:
        lib = self._lib
        try:
            return call(self._handle, *arguments)
        except lib.NVMLError as error:
            if error.value in (lib.NVML_ERROR_NOT_SUPPORTED, lib.NVML_ERROR_FUNCTION_NOT_FOUND):
                return None
            raise GpuMonitorError(str(error)) from error

    def _ask(self, call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return call(self._handle, *arguments)
        except self._lib.NVMLError as error:
            raise GpuMonitorError(str(error)) from error


def _by_pid(processes: Iterable[Any]) -> dict[int, int]:
    """MiB by PID. Memory that NVML does not report counts as 0."""
    memory: dict[int, int] = {}
    for process in processes:
        memory[process.pid] = memory.get(process.pid, 0) + (process.usedGpuMemory or 0) // MIB
    return memory
