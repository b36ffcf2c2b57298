"""pin: a machine without GPUs, and processes that are not where they were pinned."""

import argparse
from io import StringIO
from typing import Any

import pytest

from gpushare_workload.backend import GpuError
from gpushare_workload.events import JsonLines
from gpushare_workload.processes.stopping import Stop
from gpushare_workload.scenarios.sharing import pin
from gpushare_workload.scenarios.sharing.pin import PlacedProcess, misplaced


def test_without_a_visible_gpu_there_is_nothing_to_pin_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    arguments = argparse.Namespace(backend="numpy", seed=1, processes=1, elements=1)
    with pytest.raises(GpuError, match="no GPU is visible"):
        pin.run(arguments, JsonLines("pin", StringIO()), Stop())


@pytest.mark.parametrize(
    ("uuid", "listed", "words"),
    [
        ("GPU-a", {"GPU-a": {7}}, None),
        ("GPU-a", {"GPU-a": None}, None),
        ("GPU-a", {"GPU-a": set()}, None),
        ("GPU-b", {"GPU-a": {7}}, "CUDA gave it GPU-b"),
        ("GPU-a", {"GPU-a": set(), "GPU-b": {7}}, "NVML lists it on GPU-b"),
    ],
    ids=["there", "nvml-silent", "pids-of-another-namespace", "cuda-elsewhere", "nvml-elsewhere"],
)
def test_a_process_on_another_gpu_than_its_own_is_named(uuid: str, listed: Any, words: str | None) -> None:
    problems = misplaced(["GPU-a"], [PlacedProcess(7, uuid, "numpy")], listed)
    assert (not problems) if words is None else (words in problems[0])
