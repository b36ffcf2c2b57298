"""Processes that share the GPU in another mode than the one that is measured are noticed."""

import os

import pytest

from gpushare.kubectl.rules.trial.cases import TrialMode
from gpushare_workload.gpus.monitor import ListedProcesses
from gpushare_workload.mps.listed import lasting, parent_of, without_strangers, wrong_client, wrong_copies
from gpushare_workload.mps.modes import SharingMode


@pytest.mark.parametrize(
    ("mode", "listed", "words"),
    [
        (TrialMode.MPS, ListedProcesses({1: 60, 2: 60}, {9: 30}), ""),
        (TrialMode.MPS, ListedProcesses({}, {9: 30}), ""),
        (TrialMode.CAPPED, ListedProcesses({}, {1: 60, 2: 60, 9: 30}), "no MPS client"),
        (TrialMode.SLICES, ListedProcesses({}, {1: 60, 2: 60}), ""),
        (TrialMode.SLICES, ListedProcesses({1: 60}, {9: 30}), "PID 1 is a client of an MPS daemon"),
        (TrialMode.ALONE, ListedProcesses({1: 60}, {}), "PID 1 is a client"),
    ],
)
def test_a_copy_in_another_mode(mode: TrialMode, listed: ListedProcesses, words: str) -> None:
    problem = wrong_copies(mode, listed)
    assert (words in problem) if words else problem == ""


@pytest.mark.parametrize(
    ("mode", "pids", "listed", "problem"),
    [
        (SharingMode.MPS, [7, 8], ListedProcesses({7: 60}, {8: 526}), "mps: client PID 8 is on the GPU without MPS"),
        (SharingMode.TIME_SLICING, [7], ListedProcesses({7: 60}), "time-slicing: client PID 7 is a client of MPS"),
        (SharingMode.STREAMS, [7], ListedProcesses({7: 60}), ""),
        (SharingMode.MPS, [1], ListedProcesses({70: 60}, {80: 66}), ""),
    ],
    ids=["misses MPS", "under MPS", "streams may be either", "a container: its PIDs are not those of NVML"],
)
def test_a_client_in_another_mode_is_named(
    mode: SharingMode, pids: list[int], listed: ListedProcesses, problem: str
) -> None:
    assert wrong_client(mode, pids, listed) == problem


@pytest.mark.parametrize(
    ("answers", "problem", "waits"),
    [([""], "", []), (["wrong", ""], "", [1.0]), (["wrong", "still wrong"], "still wrong", [1.0])],
    ids=["nothing", "for a moment", "lasting"],
)
def test_what_is_seen_for_a_moment_ends_no_measurement(answers: list[str], problem: str, waits: list[float]) -> None:
    left, waited = iter(answers), list[float]()
    assert lasting(lambda: next(left), waited.append) == problem
    assert (list(left), waited) == ([], waits)


@pytest.mark.parametrize(
    ("parents", "kept"),
    [
        ({11: 10, 12: 20, 20: 1}, {11}),
        ({11: 13, 13: 10, 12: 0}, {11}),
        ({11: 20, 12: 20, 20: 1}, set()),
        ({12: 20, 20: 1}, {11}),
    ],
    ids=["a child of ours", "a child's child", "none of ours", "one that is not known here"],
)
def test_clients_of_another_gpu_are_nothing_that_a_copy_did(parents: dict[int, int], kept: set[int]) -> None:
    def parent(pid: int) -> int:
        if pid not in parents:
            raise FileNotFoundError
        return parents[pid]

    listed = without_strangers(ListedProcesses({11: 60, 12: 60}, {9: 30}), {10}, parent)
    assert (set(listed.mps_clients), listed.others) == (kept, {9: 30})


def test_a_copy_itself_and_its_child_are_ours() -> None:
    assert parent_of(os.getpid()) == os.getppid()
    here = ListedProcesses({os.getpid(): 60}, {})
    assert without_strangers(here, {os.getpid()}) == without_strangers(here, {os.getppid()}) == here
    assert without_strangers(here, {1 << 30}).mps_clients == {}
