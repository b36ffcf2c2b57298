"""Copies that share the GPU in another mode than the one measured are noticed."""

import pytest

from gpushare.trial.cases import TrialMode
from gpushare_workload.compare.usage import wrong_mode
from gpushare_workload.gpus.monitor import ListedProcesses


@pytest.mark.parametrize(
    ("mode", "found", "words"),
    [
        (TrialMode.MPS, ListedProcesses({1: 60, 2: 60}, {9: 30}), ""),
        (TrialMode.MPS, ListedProcesses({}, {9: 30}), ""),
        (TrialMode.CAPPED, ListedProcesses({}, {1: 60, 2: 60, 9: 30}), "no MPS client"),
        (TrialMode.SLICES, ListedProcesses({}, {1: 60, 2: 60}), ""),
        (TrialMode.SLICES, ListedProcesses({1: 60}, {9: 30}), "PID 1 is a client of an MPS daemon"),
        (TrialMode.ALONE, ListedProcesses({1: 60}, {}), "PID 1 is a client"),
    ],
)
def test_a_copy_in_another_mode(mode: TrialMode, found: ListedProcesses, words: str) -> None:
    problem = wrong_mode(mode, found)
    assert (words in problem) if words else problem == ""
