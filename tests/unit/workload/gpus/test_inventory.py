"""The GPUs that a process may use, read from CUDA_VISIBLE_DEVICES as CUDA reads it."""

import pytest

from gpushare_workload.gpus import inventory


@pytest.mark.parametrize(
    ("chosen", "visible"),
    [
        ("0,2", ["GPU-a1", "GPU-b2"]),
        ("GPU-b1", ["GPU-b1"]),
        ("1,9,0", ["GPU-b1"]),
        ("", []),
        ("GPU-b", []),
        (" 1 , 0", ["GPU-b1", "GPU-a1"]),
    ],
    ids=["indexes", "uuid", "up-to-the-first-wrong-one", "none", "ambiguous", "spaces"],
)
def test_visible_gpus_are_read_as_cuda_reads_them(chosen: str, visible: list[str]) -> None:
    assert inventory.select(chosen, ["GPU-a1", "GPU-b1", "GPU-b2"]) == visible
