"""NVML through NVIDIA's own binding (`nvidia-ml-py`, imported as `pynvml`): the real implementation of `types.Nvml`.

Guarantees: neither types nor errors of the library come out. A lost GPU is missing from lists, and raises GpuLostError
elsewhere; one that NVML fails to describe is named in them, and costs no other GPU anything. A value that an old driver
or the GPU does not support reads as absent. An answer that cannot be read, such as bytes that are no text or an unknown
compute mode, is an NvmlError like any other. Handles are looked up by UUID for each call, because they do not survive a
reset of the GPU. NVML is thread-safe, and so is this class.
"""

import ctypes
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from itertools import combinations
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from gpushare.api.compute_mode import ComputeMode
from gpushare.messages.wording import count_of
from gpushare.nvml.types import GpuInfo, GpuList, GpuLostError, GpuProcess, GpuProcesses, NvmlError, Xid
from gpushare.process.bounded_read import read_text

MIB = 1024 * 1024
MOST_LINKED = 16
"""GPUs of a node among which NVLink is asked for: NVML answers for each pair."""
MAX_PROCESSES = 4096
"""The processes on one GPU; each takes some hundred MiB of it."""
PCI_DEVICES = Path("/sys/bus/pci/devices")
T = TypeVar("T")


def cores_per_sm(major: int, minor: int) -> int:
    """CUDA cores of a streaming multiprocessor, by compute capability (CUDA C++ Programming Guide, appendix)."""
    if (major, minor) in ((6, 0), (8, 0)) or major == 7:
        return 64
    return 128


class PynvmlNvml:
    """Implements gpushare.nvml.types.Nvml. The constructor loads and initialises NVML; NvmlError if there is none."""

    simulated = False

    def __init__(self, library: ModuleType | None = None, pci_devices: Path = PCI_DEVICES) -> None:
        self._lib: Any = library or import_module("pynvml")
        lib = self._lib
        self._pci_devices = pci_devices
        self._lost_codes = {lib.NVML_ERROR_GPU_IS_LOST, lib.NVML_ERROR_RESET_REQUIRED}
        self._absent_codes = {lib.NVML_ERROR_NOT_SUPPORTED, lib.NVML_ERROR_FUNCTION_NOT_FOUND}
        self._modes = {
            lib.NVML_COMPUTEMODE_DEFAULT: ComputeMode.DEFAULT,
            lib.NVML_COMPUTEMODE_EXCLUSIVE_THREAD: ComputeMode.EXCLUSIVE_PROCESS,  # the driver treats it as that
            lib.NVML_COMPUTEMODE_PROHIBITED: ComputeMode.PROHIBITED,
            lib.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS: ComputeMode.EXCLUSIVE_PROCESS,
        }
        self._numbers = {ComputeMode.DEFAULT: lib.NVML_COMPUTEMODE_DEFAULT}
        self._numbers[ComputeMode.PROHIBITED] = lib.NVML_COMPUTEMODE_PROHIBITED
        self._numbers[ComputeMode.EXCLUSIVE_PROCESS] = lib.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS
        self._events: Any = None
        self._watched: dict[int | None, str] = {}
        """UUIDs of the GPUs in that set, by the addresses of their handles: a lost GPU no longer tells its own."""
        self._nvlinks: dict[str, frozenset[str]] = {}
        """The links of these GPUs, as long as they are the node's: links are soldered."""
        self._ask(self._lib.nvmlInit)

    def driver_version(self) -> str:
        return str(self._ask(self._lib.nvmlSystemGetDriverVersion))

    def cuda_version(self) -> str:
        number = int(self._ask(self._lib.nvmlSystemGetCudaDriverVersion))
        return f"{number // 1000}.{number % 1000 // 10}"

    def gpus(self) -> GpuList:
        infos, handles, unreadable = [], {}, []
        for index in range(self._ask(self._lib.nvmlDeviceGetCount)):
            try:
                handle = self._ask(self._lib.nvmlDeviceGetHandleByIndex, index)
                infos.append(self._info(index, handle))
                handles[infos[-1].uuid] = handle
            except GpuLostError:
                continue
            except NvmlError as error:
                unreadable.append(f"NVML does not describe GPU {index}, so it is left out: {error}")
        links = self._linked(handles)
        return GpuList([replace(gpu, nvlinked=links.get(gpu.uuid, frozenset())) for gpu in infos], unreadable)

    def compute_mode(self, uuid: str) -> ComputeMode:
        number = self._ask(self._lib.nvmlDeviceGetComputeMode, self._handle(uuid))
        if number not in self._modes:
            raise NvmlError(f"the compute mode {number!r} is not known")
        return self._modes[number]

    def set_compute_mode(self, uuid: str, mode: ComputeMode) -> None:
        self._ask(self._lib.nvmlDeviceSetComputeMode, self._handle(uuid), self._numbers[mode])

    def processes(self, uuid: str) -> GpuProcesses:
        """NVML lists an MPS client among the compute processes too (measured); it is removed there."""
        handle = self._handle(uuid)
        clients = _processes(self._newest("nvmlDeviceGetMPSComputeRunningProcesses", handle))
        known = {client.pid for client in clients}
        compute = _processes(self._newest("nvmlDeviceGetComputeRunningProcesses", handle))
        return GpuProcesses(clients, tuple(process for process in compute if process.pid not in known))

    def free_memory_mib(self, uuid: str) -> int | None:
        return int(self._ask(self._lib.nvmlDeviceGetMemoryInfo, self._handle(uuid)).free) // MIB

    def utilization(self, uuid: str) -> int | None:
        rates = self._ask_or(None, self._lib.nvmlDeviceGetUtilizationRates, self._handle(uuid))
        return None if rates is None else int(rates.gpu)

    def wait_for_xids(self, seconds: float) -> list[Xid]:
        lib = self._lib
        if self._events is None:
            self._events = self._registered_events()
        try:
            event = lib.nvmlEventSetWait_v2(self._events, int(seconds * 1000))
        except lib.NVMLError as error:
            if error.value == lib.NVML_ERROR_TIMEOUT:
                return []
            # A GPU of the set may have been reset or lost: the next call makes a new set.
            events, self._events = self._events, None
            with suppress(lib.NVMLError):
                lib.nvmlEventSetFree(events)
            raise self._translated(error) from error
        try:
            uuid = str(self._ask(lib.nvmlDeviceGetUUID, event.device))
        except GpuLostError:  # by this very Xid, such as 79
            if (known := self._watched.get(_address(event.device))) is None:
                raise
            uuid = known
        return [Xid(uuid, int(event.eventData))]

    def _registered_events(self) -> Any:
        """An event set for the critical Xids of all GPUs. NvmlError if no GPU supports them."""
        lib = self._lib
        events = self._ask(lib.nvmlEventSetCreate)
        self._watched = {}
        for index in range(self._ask(lib.nvmlDeviceGetCount)):
            with suppress(lib.NVMLError, NvmlError):
                handle = lib.nvmlDeviceGetHandleByIndex(index)
                uuid = str(self._ask(lib.nvmlDeviceGetUUID, handle))
                lib.nvmlDeviceRegisterEvents(handle, lib.nvmlEventTypeXidCriticalError, events)
                self._watched[_address(handle)] = uuid
        if not self._watched:
            self._ask(lib.nvmlEventSetFree, events)
            raise NvmlError("no GPU reports its Xids")
        return events

    def close(self) -> None:
        self._ask(self._lib.nvmlShutdown)

    def _info(self, index: int, handle: Any) -> GpuInfo:
        lib = self._lib
        major, minor = self._ask(lib.nvmlDeviceGetCudaComputeCapability, handle)
        cores = self._ask_or(0, lib.nvmlDeviceGetNumGpuCores, handle)
        return GpuInfo(
            uuid=str(self._ask(lib.nvmlDeviceGetUUID, handle)),
            index=index,
            minor=self._ask(lib.nvmlDeviceGetMinorNumber, handle),
            product=str(self._ask(lib.nvmlDeviceGetName, handle)),
            memory_mib=self._memory_mib(handle),
            sms=cores // cores_per_sm(major, minor),
            compute_capability=f"{major}.{minor}",
            numa_node=self._numa_node(handle),
            mig_enabled=self._ask_or([0, 0], lib.nvmlDeviceGetMigMode, handle)[0] == 1,
        )

    def _memory_mib(self, handle: Any) -> int:
        """The total that CUDA programs see: NVML's total without the driver's reserve, if NVML knows the reserve."""
        lib = self._lib
        detailed = self._ask_or(None, lib.nvmlDeviceGetMemoryInfo, handle, lib.nvmlMemory_v2)
        if detailed is None:
            return int(self._ask(lib.nvmlDeviceGetMemoryInfo, handle).total) // MIB
        return int(detailed.total - detailed.reserved) // MIB

    def _numa_node(self, handle: Any) -> int | None:
        """The node by sysfs: NVML's own call is for other platforms. -1 means that there is only one node."""
        bus_id = str(self._ask(lambda: self._lib.nvmlDeviceGetPciInfo(handle).busId)).lower()
        domain, _, rest = bus_id.partition(":")
        try:
            node = int(read_text(self._pci_devices / f"{domain[-4:]}:{rest}" / "numa_node"))
        except (OSError, ValueError):
            return None
        return node if node >= 0 else None

    def _linked(self, handles: Mapping[str, Any]) -> dict[str, frozenset[str]]:
        """The links by UUID. They are kept, unless NVML failed to answer: links decide which GPUs are preferred, and
        nothing else."""
        if self._nvlinks.keys() == handles.keys():
            return self._nvlinks
        lib, answered = self._lib, True
        others_of: dict[str, set[str]] = {uuid: set() for uuid in handles}
        for uuid_a, other in combinations(list(handles)[:MOST_LINKED], 2):
            try:
                status = lib.nvmlDeviceGetP2PStatus(handles[uuid_a], handles[other], lib.NVML_P2P_CAPS_INDEX_NVLINK)
            except lib.NVMLError as error:
                answered = answered and error.value in self._absent_codes
                continue
            if status == lib.NVML_P2P_STATUS_OK:
                others_of[uuid_a].add(other)
                others_of[other].add(uuid_a)
        links = {uuid: frozenset(others) for uuid, others in others_of.items()}
        self._nvlinks = links if answered else {}
        return links

    def _handle(self, uuid: str) -> Any:
        return self._ask(self._lib.nvmlDeviceGetHandleByUUID, uuid)

    def _newest(self, name: str, handle: Any) -> Iterable[Any]:
        """Calls the newest version of `name` that the driver has; empty if it has none. NvmlError: a list that no GPU
        has room for.
        """
        for version in ("_v3", "_v2"):
            answer = self._ask_or(None, getattr(self._lib, name + version), handle)
            if answer is not None:
                if len(answer) > MAX_PROCESSES:
                    raise NvmlError(f"{name} lists {count_of(len(answer), 'process')}, more than {MAX_PROCESSES}")
                return list(answer)
        return []

    def _ask_or(self, default: T, call: Callable[..., T], *arguments: Any) -> T:
        """`default` if driver or GPU do not support the call."""
        try:
            return call(*arguments)
        except self._lib.NVMLError as error:
            if error.value in self._absent_codes:
                return default
            raise self._translated(error) from error
        except UnicodeDecodeError as error:
            raise _no_text(error) from error

    def _ask(self, call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except self._lib.NVMLError as error:
            raise self._translated(error) from error
        except UnicodeDecodeError as error:  # the binding decodes names and UUIDs
            raise _no_text(error) from error

    def _translated(self, error: Any) -> NvmlError:
        """NVML no longer finds the UUID of a GPU that fell off the bus."""
        lost = error.value in self._lost_codes or error.value == self._lib.NVML_ERROR_NOT_FOUND
        return GpuLostError(str(error)) if lost else NvmlError(str(error))


def _no_text(error: UnicodeDecodeError) -> NvmlError:
    return NvmlError(f"the driver's answer is no text: {error}")


def _address(handle: Any) -> int | None:
    """The binding makes a new pointer for each answer, and pointers do not compare by what they point to."""
    return ctypes.cast(handle, ctypes.c_void_p).value


def _processes(answers: Iterable[Any]) -> tuple[GpuProcess, ...]:
    """One entry per PID; memory that NVML does not report counts as 0."""
    memory: dict[int, int] = {}
    for process in answers:
        memory[process.pid] = memory.get(process.pid, 0) + (process.usedGpuMemory or 0)
    return tuple(GpuProcess(pid, used // MIB) for pid, used in memory.items())
