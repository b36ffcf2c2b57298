"""PynvmlNvml against a stand-in for the binding, with the answers of a real H200."""

import ctypes
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from gpushare.api.compute_mode import ComputeMode
from gpushare.nvml.real import PynvmlNvml
from gpushare.nvml.types import GpuInfo, GpuLostError, GpuProcess, GpuProcesses, NvmlError, Xid

UUID = "GPU-1b502f77-33de-897e-ff25-4e03b1bc157c"
MIB = 2**20


def failing(code: int) -> Callable[..., Any]:
    def call(*_: object) -> Any:
        raise pynvml.NVMLError(code)

    return call


def library(**changes: object) -> Any:
    """The binding's constants and errors, with these calls in place of the driver's."""
    constants = {
        name: value for name, value in vars(pynvml).items() if name.startswith(("NVML", "nvmlMemory", "nvmlEventType"))
    }
    processes = [SimpleNamespace(pid=501, usedGpuMemory=66 * MIB), SimpleNamespace(pid=590, usedGpuMemory=218 * MIB)]
    calls: dict[str, object] = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlSystemGetDriverVersion": lambda: "580.159.04",
        "nvmlSystemGetCudaDriverVersion": lambda: 13000,
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": lambda index: f"handle {index}",
        "nvmlDeviceGetHandleByUUID": lambda uuid: "handle 0",
        "nvmlDeviceGetUUID": lambda _: UUID,
        "nvmlDeviceGetMinorNumber": lambda _: 3,
        "nvmlDeviceGetName": lambda _: "NVIDIA H200",
        "nvmlDeviceGetCudaComputeCapability": lambda _: (9, 0),
        "nvmlDeviceGetNumGpuCores": lambda _: 16896,
        "nvmlDeviceGetMemoryInfo": lambda _, version=None: SimpleNamespace(
            total=143771 * MIB, reserved=615 * MIB if version else 0
        ),
        "nvmlDeviceGetPciInfo": lambda _: SimpleNamespace(busId="00000000:00:06.0"),
        "nvmlDeviceGetMigMode": lambda _: [0, 0],
        "nvmlDeviceGetUtilizationRates": lambda _: SimpleNamespace(gpu=37, memory=12),
        "nvmlDeviceGetComputeMode": lambda _: pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS,
        "nvmlDeviceGetMPSComputeRunningProcesses_v3": lambda _: processes[1:],
        "nvmlDeviceGetComputeRunningProcesses_v3": lambda _: processes,
    }
    return SimpleNamespace(**{**constants, **calls, **changes})


@pytest.mark.parametrize(
    ("call", "percent"),
    [({}, 37), ({"nvmlDeviceGetUtilizationRates": failing(pynvml.NVML_ERROR_NOT_SUPPORTED)}, None)],
)
def test_utilization_is_that_of_kernels_and_unknown_where_the_gpu_has_none(
    call: dict[str, Any], percent: int | None
) -> None:
    assert PynvmlNvml(library(**call)).utilization(UUID) == percent


def test_a_gpu_is_described_in_our_units(tmp_path: Path) -> None:
    (tmp_path / "0000:00:06.0").mkdir()
    (tmp_path / "0000:00:06.0" / "numa_node").write_text("1\n")
    nvml = PynvmlNvml(library(), tmp_path)
    assert nvml.gpus().infos == [GpuInfo(UUID, 0, 3, "NVIDIA H200", 143156, 132, "9.0", 1, False)]
    assert (nvml.driver_version(), nvml.cuda_version(), nvml.simulated) == ("580.159.04", "13.0", False)


@pytest.mark.parametrize(
    ("changes", "field", "value"),
    [
        ({"nvmlDeviceGetMigMode": failing(pynvml.NVML_ERROR_NOT_SUPPORTED)}, "mig_enabled", False),
        ({"nvmlDeviceGetMigMode": lambda _: [1, 1]}, "mig_enabled", True),
        ({"nvmlDeviceGetMigMode": lambda _: [0, 1]}, "mig_enabled", False),
        (
            {"nvmlDeviceGetCudaComputeCapability": lambda _: (8, 0), "nvmlDeviceGetNumGpuCores": lambda _: 6912},
            "sms",
            108,
        ),
        ({"nvmlDeviceGetNumGpuCores": failing(pynvml.NVML_ERROR_NOT_SUPPORTED)}, "sms", 0),
        ({"nvmlDeviceGetPciInfo": lambda _: SimpleNamespace(busId="00000000:FF:00.0")}, "numa_node", None),
    ],
)
def test_unsupported_values_read_as_absent(
    tmp_path: Path, changes: dict[str, object], field: str, value: object
) -> None:
    assert getattr(PynvmlNvml(library(**changes), tmp_path).gpus().infos[0], field) == value


def test_an_old_driver_reports_its_total_memory() -> None:
    def info(_: object, version: object = None) -> object:
        if version is not None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        return SimpleNamespace(total=1000 * MIB)

    assert PynvmlNvml(library(nvmlDeviceGetMemoryInfo=info)).gpus().infos[0].memory_mib == 1000


def test_mps_clients_are_separated_from_other_processes() -> None:
    expected = GpuProcesses(mps_clients=(GpuProcess(590, 218),), compute=(GpuProcess(501, 66),))
    assert PynvmlNvml(library()).processes(UUID) == expected


def test_processes_are_read_by_the_newest_call_that_the_driver_has() -> None:
    missing = failing(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    older = library(
        nvmlDeviceGetMPSComputeRunningProcesses_v3=missing,
        nvmlDeviceGetMPSComputeRunningProcesses_v2=missing,
        nvmlDeviceGetComputeRunningProcesses_v3=missing,
        nvmlDeviceGetComputeRunningProcesses_v2=lambda _: [SimpleNamespace(pid=7, usedGpuMemory=None)],
    )
    assert PynvmlNvml(older).processes(UUID) == GpuProcesses((), (GpuProcess(7, 0),))


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (pynvml.NVML_ERROR_GPU_IS_LOST, GpuLostError),
        (pynvml.NVML_ERROR_RESET_REQUIRED, GpuLostError),
        (pynvml.NVML_ERROR_NOT_FOUND, GpuLostError),
        (pynvml.NVML_ERROR_UNKNOWN, NvmlError),
        (pynvml.NVML_ERROR_NO_PERMISSION, NvmlError),
    ],
)
def test_errors_are_ours_and_a_lost_gpu_raises_its_own(code: int, error: type[NvmlError]) -> None:
    nvml = PynvmlNvml(library(nvmlDeviceGetHandleByUUID=failing(code)))
    for call in (nvml.processes, nvml.compute_mode):
        with pytest.raises(NvmlError) as raised:
            call(UUID)
        assert type(raised.value) is error


def no_text(*_: object) -> str:
    return b"NVIDIA \xff".decode()


class PciInfoWithoutText:
    """The binding decodes a field when it is looked at."""

    busId = property(no_text)


@pytest.mark.parametrize(
    ("changes", "call", "sentence"),
    [
        ({"nvmlDeviceGetComputeMode": lambda _: 77}, lambda nvml: nvml.compute_mode(UUID), "compute mode 77"),
        ({"nvmlSystemGetDriverVersion": no_text}, lambda nvml: nvml.driver_version(), "no text"),
    ],
)
def test_an_answer_that_cannot_be_read_is_an_error_of_ours(
    changes: dict[str, object], call: Callable[[PynvmlNvml], object], sentence: str
) -> None:
    """Any other error would end the agent, which ends departing clients without harm to their neighbours."""
    with pytest.raises(NvmlError, match=sentence):
        call(PynvmlNvml(library(**changes)))


def test_a_lost_gpu_is_missing_from_the_list_of_gpus() -> None:
    def handle(index: int) -> str:
        if index == 0:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return "handle 1"

    nvml = PynvmlNvml(library(nvmlDeviceGetCount=lambda: 2, nvmlDeviceGetHandleByIndex=handle))
    assert [gpu.index for gpu in nvml.gpus().infos] == [1]


@pytest.mark.parametrize(
    ("call", "broken", "sentence"),
    [
        ("nvmlDeviceGetHandleByIndex", failing(pynvml.NVML_ERROR_UNKNOWN), "Unknown Error"),
        ("nvmlDeviceGetName", failing(pynvml.NVML_ERROR_UNKNOWN), "Unknown Error"),
        ("nvmlDeviceGetMemoryInfo", failing(pynvml.NVML_ERROR_UNKNOWN), "Unknown Error"),
        ("nvmlDeviceGetCudaComputeCapability", failing(pynvml.NVML_ERROR_IRQ_ISSUE), "Interrupt"),
        ("nvmlDeviceGetName", no_text, "no text"),
        ("nvmlDeviceGetUUID", no_text, "no text"),
        ("nvmlDeviceGetMigMode", no_text, "no text"),
        ("nvmlDeviceGetPciInfo", lambda *_: PciInfoWithoutText(), "no text"),
    ],
)
def test_a_gpu_that_nvml_cannot_describe_is_named_and_the_others_serve(
    call: str, broken: Callable[..., Any], sentence: str
) -> None:
    sound = getattr(library(), call)

    def of_the_second(subject: object, *arguments: object) -> Any:
        return (broken if str(subject).endswith("1") else sound)(subject, *arguments)

    listed = PynvmlNvml(library(nvmlDeviceGetCount=lambda: 3, **{call: of_the_second})).gpus()
    assert [gpu.index for gpu in listed.infos] == [0, 2]
    assert len(listed.unreadable) == 1
    assert listed.unreadable[0].startswith("NVML does not describe GPU 1,")
    assert sentence in listed.unreadable[0]


@pytest.mark.parametrize("mode", list(ComputeMode))
def test_a_compute_mode_that_is_set_is_the_one_that_is_read(mode: ComputeMode) -> None:
    stored: list[int] = []
    nvml = PynvmlNvml(
        library(
            nvmlDeviceSetComputeMode=lambda _, number: stored.append(number),
            nvmlDeviceGetComputeMode=lambda _: stored[-1],
        )
    )
    nvml.set_compute_mode(UUID, mode)
    assert nvml.compute_mode(UUID) is mode


def test_without_a_driver_the_constructor_raises() -> None:
    with pytest.raises(NvmlError):
        PynvmlNvml(library(nvmlInit=failing(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)))


class Events:
    """The binding's event calls: answers in their order, and how often a set was made and freed."""

    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)
        self.made = self.freed = 0
        self.asked: list[int] = []

    def library(self, **changes: object) -> Any:
        return library(
            nvmlEventSetCreate=self._make,
            nvmlEventSetFree=self._free,
            nvmlEventSetWait_v2=self._wait,
            **{"nvmlDeviceRegisterEvents": lambda *_: None, **changes},
        )

    def _make(self) -> str:
        self.made += 1
        return f"set {self.made}"

    def _free(self, _: str) -> None:
        self.freed += 1

    def _wait(self, events: str, milliseconds: int) -> object:
        assert events == f"set {self.made}"
        self.asked.append(milliseconds)
        answer = self.answers.pop(0)
        if isinstance(answer, int):
            raise pynvml.NVMLError(answer)
        return answer


def test_an_xid_names_its_gpu_and_the_wait_is_bounded() -> None:
    events = Events(SimpleNamespace(device="handle 0", eventData=31), pynvml.NVML_ERROR_TIMEOUT)
    nvml = PynvmlNvml(events.library())
    assert nvml.wait_for_xids(2.5) == [Xid(UUID, 31)]
    assert nvml.wait_for_xids(1) == []
    assert (events.asked, events.made, events.freed) == ([2500, 1000], 1, 0)


def test_an_xid_of_a_gpu_that_is_lost_by_it_names_it_all_the_same() -> None:
    """Xid 79: the GPU has fallen off the bus, and tells its UUID no more."""

    def handle(_: int = 0) -> Any:
        return ctypes.cast(0x7F001000, ctypes.POINTER(ctypes.c_int))

    def uuid(_: Any) -> str:
        if lost:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return UUID

    lost = False
    events = Events(pynvml.NVML_ERROR_TIMEOUT, SimpleNamespace(device=handle(), eventData=79))
    nvml = PynvmlNvml(events.library(nvmlDeviceGetHandleByIndex=handle, nvmlDeviceGetUUID=uuid))
    assert nvml.wait_for_xids(1) == []
    lost = True
    assert nvml.wait_for_xids(1) == [Xid(UUID, 79)]


def test_after_a_failed_wait_a_new_set_is_waited_on() -> None:
    events = Events(pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_TIMEOUT)
    nvml = PynvmlNvml(events.library())
    with pytest.raises(GpuLostError):
        nvml.wait_for_xids(1)
    assert nvml.wait_for_xids(1) == []
    assert (events.made, events.freed) == (2, 1)


def test_gpus_without_xid_events_raise() -> None:
    events = Events()
    nvml = PynvmlNvml(events.library(nvmlDeviceRegisterEvents=failing(pynvml.NVML_ERROR_NOT_SUPPORTED)))
    with pytest.raises(NvmlError, match="no GPU reports"):
        nvml.wait_for_xids(1)
    assert events.freed == 1


def three_gpus(status: Callable[..., Any]) -> Any:
    return library(
        nvmlDeviceGetCount=lambda: 3,
        nvmlDeviceGetUUID=lambda handle: f"GPU-{handle.split()[1]}",
        nvmlDeviceGetP2PStatus=status,
    )


def test_gpus_that_nvlink_joins_are_known_and_asked_for_once() -> None:
    asked: list[tuple[str, str, int]] = []

    def status(first: str, other: str, kind: int) -> int:
        asked.append((first, other, kind))
        joined = {first, other} == {"handle 0", "handle 2"}
        return pynvml.NVML_P2P_STATUS_OK if joined else pynvml.NVML_P2P_STATUS_NOT_SUPPORTED

    nvml = PynvmlNvml(three_gpus(status))
    for _ in range(2):
        assert [gpu.nvlinked for gpu in nvml.gpus().infos] == [{"GPU-2"}, frozenset(), {"GPU-0"}]
    assert len(asked) == 3
    assert {kind for *_, kind in asked} == {pynvml.NVML_P2P_CAPS_INDEX_NVLINK}


@pytest.mark.parametrize(
    ("code", "asked"),
    [
        pytest.param(pynvml.NVML_ERROR_NOT_SUPPORTED, 3, id="a driver that does not know"),
        pytest.param(pynvml.NVML_ERROR_UNKNOWN, 6, id="a failure, after which it is asked again"),
        pytest.param(pynvml.NVML_ERROR_GPU_IS_LOST, 6, id="a GPU that is lost"),
    ],
)
def test_where_nvml_says_nothing_of_nvlink_the_gpus_are_there_without(code: int, asked: int) -> None:
    calls: list[object] = []

    def status(*arguments: object) -> int:
        calls.append(arguments)
        raise pynvml.NVMLError(code)

    nvml = PynvmlNvml(three_gpus(status))
    for _ in range(2):
        assert [gpu.nvlinked for gpu in nvml.gpus().infos] == [frozenset()] * 3
    assert len(calls) == asked
