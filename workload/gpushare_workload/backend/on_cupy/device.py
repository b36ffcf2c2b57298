"""The properties of this process's GPU, from CUDA and NVML."""

from contextlib import suppress
from typing import Any

import cupy

from gpushare_workload.backend.interface import DeviceProperties
from gpushare_workload.backend.work import Peaks

MEGATRANSFERS_PER_LANE = {1: 2500, 2: 5000, 3: 8000, 4: 16000, 5: 32000, 6: 64000}
"""Transfers per second by PCIe generation, one bit for each. An upper bound: the encoding takes a part."""


def describe() -> DeviceProperties:
    properties = cupy.cuda.runtime.getDeviceProperties(0)
    free, total = cupy.cuda.runtime.memGetInfo()
    uuid = _uuid(properties["uuid"])
    name = properties["name"].decode()
    return DeviceProperties(name, uuid, properties["multiProcessorCount"], _total_sms(uuid, properties), free, total)


def peaks() -> Peaks:
    """The peaks by the device's highest clocks and the GPU's SMs (the visible SMs if NVML does not report all).

    Source of the FP32 results per clock and SM: CUDA C++ Programming Guide, "Arithmetic Instructions". Memory moves
    data twice a clock.
    """
    properties = cupy.cuda.runtime.getDeviceProperties(0)
    uuid = _uuid(properties["uuid"])
    sms = _total_sms(uuid, properties) or properties["multiProcessorCount"]
    return Peaks(
        flops=sms * _fp32_lanes(properties) * 2 * properties["clockRate"] * 1e3,
        bandwidth=properties["memoryClockRate"] * 1e3 * 2 * properties["memoryBusWidth"] / 8 or None,
        link=_link(uuid),
        cache=properties["l2CacheSize"],
    )


def _uuid(raw: bytes) -> str:
    text = raw[:16].hex()
    return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _fp32_lanes(properties: dict[str, Any]) -> int:
    """FP32 lanes of an SM: 64 on Volta, Turing and the A100, 128 on later GPUs."""
    major, minor = properties["major"], properties["minor"]
    return 64 if (major, minor) <= (8, 0) and (major, minor) >= (7, 0) else 128


def _total_sms(uuid: str, properties: dict[str, Any]) -> int | None:
    """SMs of the whole GPU. CUDA shows only those that this client may use; NVML counts the FP32 cores of all SMs."""
    with suppress(ImportError, OSError):
        import pynvml

        with suppress(pynvml.NVMLError):
            pynvml.nvmlInit()
            handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            return int(pynvml.nvmlDeviceGetNumGpuCores(handle)) // _fp32_lanes(properties)
    return None


def _link(uuid: str) -> float | None:
    """Bytes per second over PCIe, both directions together; None if NVML does not report the link."""
    with suppress(ImportError, OSError):
        import pynvml

        with suppress(pynvml.NVMLError):
            pynvml.nvmlInit()
            handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            each = MEGATRANSFERS_PER_LANE.get(pynvml.nvmlDeviceGetMaxPcieLinkGeneration(handle))
            return each and 2 * each * 1e6 / 8 * pynvml.nvmlDeviceGetMaxPcieLinkWidth(handle)
    return None
