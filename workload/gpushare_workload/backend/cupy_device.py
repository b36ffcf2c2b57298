"""What CUDA and NVML tell about this process's GPU."""

from contextlib import suppress
from typing import Any

import cupy

from gpushare_workload.backend.seam import Device
from gpushare_workload.backend.work import Peaks

MEGATRANSFERS_PER_LANE = {1: 2500, 2: 5000, 3: 8000, 4: 16000, 5: 32000, 6: 64000}
"""By PCIe generation. A bit each: an upper bound, since the encoding takes some."""


def describe() -> Device:
    properties = cupy.cuda.runtime.getDeviceProperties(0)
    free, total = cupy.cuda.runtime.memGetInfo()
    uuid = _uuid(properties["uuid"])
    name = properties["name"].decode()
    return Device(name, uuid, properties["multiProcessorCount"], _total_sms(uuid, properties), free, total)


def peaks() -> Peaks:
    """From the device's highest clocks; of all SMs where NVML tells how many there are, else of the visible ones.

    CUDA C++ Programming Guide, arithmetic throughput: FP32 results per clock and SM. Memory moves data twice a clock.
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
    """FP32 lanes of an SM: 64 on Volta, Turing and the A100, 128 on everything since."""
    major, minor = properties["major"], properties["minor"]
    return 64 if (major, minor) <= (8, 0) and (major, minor) >= (7, 0) else 128


def _total_sms(uuid: str, properties: dict[str, Any]) -> int | None:
    """SMs of the whole GPU: CUDA tells only what this client may use, NVML counts the FP32 cores of all."""
    with suppress(ImportError, OSError):
        import pynvml

        with suppress(pynvml.NVMLError):
            pynvml.nvmlInit()
            handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            return int(pynvml.nvmlDeviceGetNumGpuCores(handle)) // _fp32_lanes(properties)
    return None


def _link(uuid: str) -> float | None:
    """Bytes per second over PCIe, to the host and back together."""
    with suppress(ImportError, OSError):
        import pynvml

        with suppress(pynvml.NVMLError):
            pynvml.nvmlInit()
            handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            each = MEGATRANSFERS_PER_LANE.get(pynvml.nvmlDeviceGetMaxPcieLinkGeneration(handle))
            return each and 2 * each * 1e6 / 8 * pynvml.nvmlDeviceGetMaxPcieLinkWidth(handle)
    return None
