"""The library that stands in for NVML shows the GPUs that it was told of, by the ABI that NVIDIA's plugin calls."""

import ctypes
import shutil
from pathlib import Path

import pytest

from measurements.gpu.stack.bring import SIMULATED_GPU
from measurements.peers.rehearsal import nvml
from measurements.peers.rehearsal.driver import uuids

GPUS = 3
INVALID_ARGUMENT, NOT_FOUND = 2, 6

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    path: Path = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    path.write_bytes(nvml.nvml(GPUS))
    loaded = ctypes.CDLL(str(path))
    assert loaded.nvmlInit_v2() == 0
    return loaded


def handle(library: ctypes.CDLL, index: int) -> ctypes.c_void_p:
    pointer = ctypes.c_void_p()
    assert library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(pointer)) == 0
    return pointer


def test_it_has_the_gpus_of_the_simulated_driver(library: ctypes.CDLL) -> None:
    count, text = ctypes.c_uint(), ctypes.create_string_buffer(96)
    assert library.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0
    assert count.value == GPUS
    seen = []
    for index in range(GPUS):
        assert library.nvmlDeviceGetUUID(handle(library, index), text, len(text)) == 0
        seen.append(text.value.decode())
    assert seen == uuids(GPUS)
    assert library.nvmlDeviceGetHandleByIndex_v2(GPUS, ctypes.byref(ctypes.c_void_p())) == INVALID_ARGUMENT


def test_a_uuid_leads_to_its_gpu_and_a_foreign_one_to_none(library: ctypes.CDLL) -> None:
    pointer, number = ctypes.c_void_p(), ctypes.c_uint()
    assert library.nvmlDeviceGetHandleByUUID(uuids(GPUS)[2].encode(), ctypes.byref(pointer)) == 0
    assert library.nvmlDeviceGetMinorNumber(pointer, ctypes.byref(number)) == 0
    assert number.value == 2
    assert library.nvmlDeviceGetHandleByUUID(b"GPU-of-another-node", ctypes.byref(pointer)) == NOT_FOUND


def test_product_and_memory_are_those_of_the_simulation(library: ctypes.CDLL) -> None:
    text, memory = ctypes.create_string_buffer(96), (ctypes.c_ulonglong * 3)()
    assert library.nvmlDeviceGetName(handle(library, 0), text, len(text)) == 0
    assert text.value.decode() == SIMULATED_GPU["product"]
    assert library.nvmlDeviceGetMemoryInfo(handle(library, 0), memory) == 0
    assert list(memory) == [SIMULATED_GPU["memory_mib"] << 20, SIMULATED_GPU["memory_mib"] << 20, 0]
