"""Copies that share the GPU in another mode than the one measured are noticed."""

import os

import pytest

from gpushare.kubectl.rules.trial.cases import TrialMode
from gpushare_workload.compare.usage import lasting_wrong_mode, parent_of, without_strangers, wrong_mode
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


ANOTHER_GPUS_CLIENT = ListedProcesses({1: 60}, {})
OURS = ListedProcesses({}, {2: 60})


@pytest.mark.parametrize(
    ("looks", "is_wrong"),
    [
        ([OURS], False),
        ([ANOTHER_GPUS_CLIENT, OURS], False),
        ([ANOTHER_GPUS_CLIENT, ANOTHER_GPUS_CLIENT], True),
    ],
    ids=["nothing", "for a moment", "lasting"],
)
def test_what_is_seen_for_a_moment_ends_no_comparison(looks: list[ListedProcesses], is_wrong: bool) -> None:
    left = iter(looks)
    assert bool(lasting_wrong_mode(TrialMode.SLICES, lambda: next(left), seconds=0)) is is_wrong
    assert list(left) == []


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

    found = without_strangers(ListedProcesses({11: 60, 12: 60}, {9: 30}), {10}, parent)
    assert (set(found.mps_clients), found.others) == (kept, {9: 30})


def test_a_copy_itself_and_its_child_are_ours() -> None:
    assert parent_of(os.getpid()) == os.getppid()
    here = ListedProcesses({os.getpid(): 60}, {})
    assert without_strangers(here, {os.getpid()}) == without_strangers(here, {os.getppid()}) == here
    assert without_strangers(here, {1 << 30}).mps_clients == {}
