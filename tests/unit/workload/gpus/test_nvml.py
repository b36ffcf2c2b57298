"""The GPU through NVML: its processes, the reasons for low clocks, and errors."""

from types import SimpleNamespace
from typing import Any

import pytest

from gpushare_workload.gpus.monitor import GpuMonitorError, GpuUsage, ListedProcesses
from gpushare_workload.gpus.nvml import NvmlMonitor, reasons

MIB = 1 << 20


def test_reasons_are_the_bits_that_are_set() -> None:
    assert reasons(0) == []
    assert reasons(0x24) == ["power-cap", "thermal-slowdown"]
    assert reasons(0x1000) == ["reason 0x1000"]


class NvmlError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"code {value}")
        self.value = value


def library(**calls: Any) -> Any:
    names = ("DEFAULT", "EXCLUSIVE_THREAD", "PROHIBITED", "EXCLUSIVE_PROCESS")
    modes = {f"NVML_COMPUTEMODE_{name}": number for number, name in enumerate(names)}
    codes = {"NVMLError": NvmlError, "NVML_ERROR_NOT_SUPPORTED": 3, "NVML_ERROR_FUNCTION_NOT_FOUND": 13}
    return SimpleNamespace(**modes, **codes, **calls)


def listed(*processes: tuple[int, int | None]) -> Any:
    return lambda _: [
        SimpleNamespace(pid=pid, usedGpuMemory=None if mib is None else mib * MIB) for pid, mib in processes
    ]


def absent(_: object) -> None:
    raise NvmlError(13)


def test_an_mps_client_is_no_other_process_though_nvml_lists_it_as_both() -> None:
    lib = library(
        nvmlDeviceGetMPSComputeRunningProcesses_v3=absent,
        nvmlDeviceGetMPSComputeRunningProcesses_v2=listed((7, 60)),
        nvmlDeviceGetComputeRunningProcesses_v3=listed((7, 60), (8, 66), (9, None)),
    )
    assert NvmlMonitor(lib, object()).processes() == ListedProcesses({7: 60}, {8: 66, 9: 0})


def test_an_error_of_nvml_keeps_its_text() -> None:
    def lost(_: object) -> None:
        raise NvmlError(15)

    with pytest.raises(GpuMonitorError, match="code 15"):
        NvmlMonitor(library(nvmlDeviceGetComputeMode=lost), object()).compute_mode()


@pytest.mark.parametrize(("rates", "busy"), [(lambda _: SimpleNamespace(gpu=94), 94.0), (absent, None)])
def test_usage_is_of_the_whole_gpu_and_utilisation_may_not_be_reported(rates: Any, busy: float | None) -> None:
    lib = library(
        nvmlDeviceGetUtilizationRates=rates, nvmlDeviceGetMemoryInfo=lambda _: SimpleNamespace(used=870 * MIB)
    )
    assert NvmlMonitor(lib, object()).usage() == GpuUsage(870, busy)
