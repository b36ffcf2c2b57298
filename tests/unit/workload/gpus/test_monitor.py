"""The choice of one GPU by index or UUID."""

import pytest

from gpushare_workload.gpus.monitor import GpuMonitorError, index_of

UUIDS = ["GPU-aaaa", "GPU-bbbb"]


@pytest.mark.parametrize(("chosen", "index"), [("0", 0), ("1", 1), ("GPU-bbbb", 1), ("GPU-b", 1)])
def test_a_gpu_is_chosen_by_its_index_or_uuid(chosen: str, index: int) -> None:
    assert index_of(chosen, UUIDS) == index


@pytest.mark.parametrize("chosen", ["2", "GPU-", "GPU-cccc", "", "-1"])
def test_a_gpu_that_is_not_there_or_not_the_only_one_is_refused(chosen: str) -> None:
    with pytest.raises(GpuMonitorError, match="names no GPU of this machine: GPU-aaaa, GPU-bbbb"):
        index_of(chosen, UUIDS)
