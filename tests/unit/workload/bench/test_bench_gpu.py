"""The GPU seen through NVML: which one, who is on it, why its clocks are low; and refusals that name what holds it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpushare_workload.bench.clients.group import check_mode
from gpushare_workload.gpus.monitor import GpuMonitorError, GpuProcesses, select
from gpushare_workload.gpus.nvml import NvmlMonitor, reasons
from gpushare_workload.bench.daemon.obstacles import of_gpu, of_machine
from gpushare_workload.bench.plan import SharingMode
from gpushare_workload.events import WrongError

UUIDS = ["GPU-aaaa", "GPU-bbbb"]
MIB = 1 << 20


@pytest.mark.parametrize(("chosen", "index"), [("0", 0), ("1", 1), ("GPU-bbbb", 1), ("GPU-b", 1)])
def test_a_gpu_is_chosen_by_its_index_or_uuid(chosen: str, index: int) -> None:
    assert select(chosen, UUIDS) == index


@pytest.mark.parametrize("chosen", ["2", "GPU-", "GPU-cccc", "", "-1"])
def test_a_gpu_that_is_not_there_or_not_the_only_one_is_refused(chosen: str) -> None:
    with pytest.raises(GpuMonitorError, match="names no GPU of this machine: GPU-aaaa, GPU-bbbb"):
        select(chosen, UUIDS)


def test_reasons_are_the_bits_that_are_set() -> None:
    assert reasons(0) == []
    assert reasons(0x24) == ["power-cap", "thermal-slowdown"]
    assert reasons(0x1000) == ["reason 0x1000"]


class Refused(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"code {value}")
        self.value = value


def library(**calls: Any) -> Any:
    names = ("DEFAULT", "EXCLUSIVE_THREAD", "PROHIBITED", "EXCLUSIVE_PROCESS")
    modes = {f"NVML_COMPUTEMODE_{name}": number for number, name in enumerate(names)}
    codes = {"NVMLError": Refused, "NVML_ERROR_NOT_SUPPORTED": 3, "NVML_ERROR_FUNCTION_NOT_FOUND": 13}
    return SimpleNamespace(**modes, **codes, **calls)


def listed(*found: tuple[int, int | None]) -> Any:
    return lambda _: [SimpleNamespace(pid=pid, usedGpuMemory=None if mib is None else mib * MIB) for pid, mib in found]


def absent(_: object) -> None:
    raise Refused(13)


def test_an_mps_client_is_no_other_process_though_nvml_lists_it_as_both() -> None:
    lib = library(
        nvmlDeviceGetMPSComputeRunningProcesses_v3=absent,
        nvmlDeviceGetMPSComputeRunningProcesses_v2=listed((7, 60)),
        nvmlDeviceGetComputeRunningProcesses_v3=listed((7, 60), (8, 66), (9, None)),
    )
    assert NvmlMonitor(lib, object()).processes() == GpuProcesses({7: 60}, {8: 66, 9: 0})


def test_an_nvml_that_fails_says_so() -> None:
    def lost(_: object) -> None:
        raise Refused(15)

    with pytest.raises(GpuMonitorError, match="code 15"):
        NvmlMonitor(library(nvmlDeviceGetComputeMode=lost), object()).compute_mode()


def test_a_client_that_misses_mps_is_found_before_anything_is_measured() -> None:
    with pytest.raises(WrongError, match="mps: client PID 8 is on the GPU without MPS"):
        check_mode(SharingMode.MPS, [7, 8], GpuProcesses({7: 60}, {8: 526}))
    with pytest.raises(WrongError, match="time-slicing: client PID 7 is a client of MPS"):
        check_mode(SharingMode.TIME_SLICING, [7], GpuProcesses({7: 60}, {}))
    check_mode(SharingMode.MPS, [1], GpuProcesses({70: 60}, {80: 66}))  # a container: its PIDs are not those of NVML


FREE: dict[str, Any] = {
    "uuid": "GPU-1", "share_directory": None, "processes": GpuProcesses(), "names": {}, "compute_mode": "Default"
}  # fmt: skip


def test_a_free_gpu_has_nothing_in_the_way() -> None:
    assert of_gpu(**FREE) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"share_directory": Path("/run/gpushare/GPU-1")},
            "a share of gpushare holds GPU-1 (/run/gpushare/GPU-1 exists)",
        ),
        (
            {"processes": GpuProcesses({}, {42: 526}), "names": {42: "python3"}},
            "a process is on GPU-1: PID 42 (python3, 526 MiB)",
        ),
        (
            {"processes": GpuProcesses({43: 60}, {})},
            "an MPS client is on GPU-1: PID 43 (of another PID namespace, 60 MiB)",
        ),
        ({"compute_mode": "Prohibited"}, "the compute mode of GPU-1 is Prohibited"),
    ],
    ids=["share", "process", "client", "mode"],
)
def test_what_holds_a_gpu_is_named(change: dict[str, Any], words: str) -> None:
    (said,) = of_gpu(**{**FREE, **change})
    assert said.startswith(words)


@pytest.mark.parametrize(
    ("program", "socket", "exclusive", "root", "words"),
    [
        ("/bin/x", "/tmp/a/control", True, True, None),
        (None, "/tmp/a/control", False, False, "nvidia-cuda-mps-control is not on PATH"),
        ("/bin/x", f"/tmp/{'a' * 103}", False, False, "has 108 bytes, a socket's path at most 107: set TMPDIR"),
        ("/bin/x", "/tmp/a/control", True, False, "--exclusive changes the compute mode, which needs root"),
    ],
)
def test_what_this_machine_lacks_is_named(
    program: str | None, socket: str, exclusive: bool, root: bool, words: str | None
) -> None:
    found = of_machine(program, Path(socket), exclusive, root)
    assert (found == []) if words is None else (words in "; ".join(found))
