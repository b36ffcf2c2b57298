"""The judgement of a run: figures that cannot be true are refused, throttled clocks are a warning."""

import pytest

from gpushare_workload.backend.work import LoadKind, Peaks, Work
from gpushare_workload.bench.runner import clock_warnings, refusal
from tests.unit.workload.results.made_up import run

WORK = Work(LoadKind.COMPUTE, blocks=1, iterations=1)  # 256 threads, 4 chains, 2 operations: 2048 a launch


@pytest.mark.parametrize(
    ("kernels", "words"),
    [
        ((500, 500), ""),
        ((501, 500), "FLOP/s are above the GPU's 2.05e"),
        ((60, 0), "client 1 ran nothing within the 1 s that count"),
    ],
)
def test_figures_that_no_gpu_reaches_are_refused(kernels: tuple[int, ...], words: str) -> None:
    reason = refusal(run(kernels=kernels), WORK, Peaks(flops=2048 * 1000))
    assert (words in reason) if words else (reason == "")


def test_without_known_peaks_nothing_is_refused_for_its_speed() -> None:
    assert refusal(run(kernels=(10**9, 10**9)), WORK, Peaks()) == ""


def test_throttling_is_a_warning_and_idling_is_none() -> None:
    assert clock_warnings(["idle", "thermal-slowdown"]) == ("clocks were throttled: thermal-slowdown",)
