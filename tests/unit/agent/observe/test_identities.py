"""NVML's list against the MPS server's: what is honest, who forged a PID, who never attached, and too many contexts."""

from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.agent.observe.usage import (
    ListedClients,
    ListedProcess,
    Reading,
    Usage,
)
from gpushare.agent.observe.violations import LISTED_SECONDS, ViolationTracker, message, violations
from gpushare.grant.model import CONTEXTS_OF_A_GPU, most_contexts
from tests.unit.agent.observed_pods import UUID, owner, process, usage

GPU_MIB = 143155
CONTEXT = 520
NOTHING: dict[int, int] = {}


def reading(listed: Usage, contexts: dict[int, int] | None, taken_at: float = 100.0, **served: Any) -> Reading:
    known = None if contexts is None else ListedClients(MappingProxyType(contexts), **served)
    return Reading(UUID, "a", taken_at, GPU_MIB, (listed,), served=known)


def summary(shown: Reading) -> list[tuple[str, int, int, list[int], list[int]]]:
    """(reason, granted, observed, PIDs to be ended, PIDs of those ended before)."""
    return [
        (
            str(item.reason),
            item.granted,
            item.observed,
            [process.pid for process in item.to_end],
            [process.pid for process in item.clients_beside],
        )
        for item in violations(shown)
    ]


def named(pid: int, *, runs: bool = True, number: int = 1) -> ListedProcess:
    return process(pid, 0, owner(number)) if runs else ListedProcess(pid, 0, 0, True)


CLIENT, CHILD = process(1, CONTEXT, started=1), process(2, CONTEXT, started=2)
WAITS = process(2, 0, started=2)


@pytest.mark.parametrize(
    ("listed", "contexts", "served"),
    [
        pytest.param(usage(CLIENT), {1: 1}, {}, id="a client"),
        pytest.param(usage(CLIENT), {1: 3}, {}, id="a client with three contexts"),
        pytest.param(usage(CLIENT, CHILD), {1: 1, 2: 1}, {}, id="a server with a worker, a DataLoader by spawn, ranks"),
        pytest.param(usage(CLIENT, WAITS), {1: 1}, {}, id="a parent that only asked is_available() and is listed"),
        pytest.param(usage(WAITS), NOTHING, {}, id="one that waits between cuInit and its first context"),
        pytest.param(usage(WAITS), {9: 1}, {"named": (named(9, number=2),)}, id="one that waits beside a new client"),
        pytest.param(usage(CLIENT), None, {}, id="a server that nobody could ask"),
        pytest.param(usage(CLIENT), NOTHING, {}, id="a client that the server lists a moment later"),
        pytest.param(
            usage(replace(CLIENT, terminated=True)), {9: 1}, {"named": (named(9),)}, id="one that was ended already"
        ),
        pytest.param(
            usage(CLIENT), {9: 1}, {"named": (named(9, number=2),)}, id="one that another container's process is beside"
        ),
    ],
)
def test_an_honest_container_has_no_finding(listed: Usage, contexts: dict[int, int] | None, served: Any) -> None:
    assert summary(reading(listed, contexts, **served)) == []


@pytest.mark.parametrize(
    ("listed", "contexts", "served", "expected"),
    [
        pytest.param(
            usage(CLIENT),
            {9: 1},
            {"named": (named(9),)},
            [("ClientNotListed", 0, 1, [1], [9])],
            id="it named a process of its container, which is ended first",
        ),
        pytest.param(
            usage(CLIENT),
            {9: 1},
            {"named": (named(9, runs=False),)},
            [("ClientNotListed", 0, 1, [1], [])],
            id="the process that it named has ended",
        ),
        pytest.param(
            usage(CLIENT, CHILD),
            {2: 1, 9: 1},
            {"named": (named(9),)},
            [("ClientNotListed", 0, 1, [1], [9, 2])],
            id="beside an honest client of its container, which is ended first",
        ),
        pytest.param(
            usage(CLIENT, by_default=True),
            {9: 1},
            {"named": (named(9),)},
            [("ClientNotListed", 0, 1, [], [9])],
            id="a grant that is only assumed is no reason to end anybody",
        ),
        pytest.param(
            usage(CLIENT, CHILD),
            {1: 1, 2: 1},
            {"unattached": frozenset({(2, 2)})},
            [("NeverAttached", 2, 1, [2, 1], [])],
            id="one whom another process let in; all of the container are to be ended",
        ),
        pytest.param(
            usage(CLIENT, CHILD),
            {1: 1, 2: 1},
            {"without_pages": frozenset({(2, 2), (7, 7)})},
            [("ClassNotTaken", 0, 1, [2, 1], [])],
            id="one that gives way to nobody; all of the container are to be ended",
        ),
        pytest.param(
            usage(CLIENT, CHILD),
            {1: 1, 2: 1},
            {"without_pages": frozenset({(2, 2)}), "without_library": frozenset({(2, 2)})},
            [("ClassNotTaken", 0, 1, [], [])],
            id="one whose container was started without the library is not to blame",
        ),
        pytest.param(
            usage(CLIENT, by_default=True),
            {1: 1},
            {"without_pages": frozenset({(1, 1)})},
            [("ClassNotTaken", 0, 1, [], [])],
            id="one whose grant is only assumed gives way to nobody",
        ),
        pytest.param(
            usage(CLIENT, CHILD),
            {1: 1, 2: 1},
            {"without_place": frozenset({(2, 2)})},
            [("ComputesWithoutPlace", 0, 1, [2, 1], [])],
            id="one that got past the queue; all of the container are to be ended",
        ),
        pytest.param(
            usage(CLIENT, CHILD),
            {1: 1, 2: 1},
            {"unattached": frozenset({(2, 1), (3, 3)})},
            [],
            id="a later process has the PID of one that never attached",
        ),
        pytest.param(
            usage(CLIENT, most_contexts=4),
            {1: 5},
            {},
            [("TooManyContexts", 4, 5, [1], [])],
            id="more contexts than it may have",
        ),
        pytest.param(usage(CLIENT, most_contexts=4), {1: 4, 7: 9}, {}, [], id="as many as it may have"),
    ],
)
def test_what_the_servers_list_shows(listed: Usage, contexts: dict[int, int], served: Any, expected: Any) -> None:
    shown = reading(listed, contexts, **served)
    assert summary(shown) == expected
    for violation in violations(shown):
        assert "container app of pod team/pod-1" in message(violation)


def test_a_forged_pid_is_a_finding_after_a_while_and_not_for_one_reading() -> None:
    tracker = ViolationTracker([], 0.0, 30.0)
    forged = usage(CLIENT)
    told = [
        bool(tracker.judge([reading(forged, {9: 1}, at, named=(named(9),))], {UUID: "a"}, "now").confirmed)
        for at in (100.0, 102.0, 100.0 + LISTED_SECONDS, 102.0 + LISTED_SECONDS)
    ]
    assert told == [False, False, True, True]


PIDS = st.integers(1, 6)


@given(
    st.dictionaries(PIDS, st.tuples(st.integers(0, 3), st.integers(0, 600)), max_size=6),
    st.sets(PIDS, max_size=6),
)
def test_whoever_attached_and_sends_its_own_pid_is_never_ended(shown: Any, listed_by_nvml: set[int]) -> None:
    """Whatever NVML lists of processes that wait, and however many contexts the others have."""
    contexts = {pid: count for pid, (count, _) in shown.items() if count}
    clients = [process(pid, memory if pid in contexts else 0, started=pid) for pid, (_, memory) in shown.items()]
    clients = [client for client in clients if client.pid in contexts or client.pid in listed_by_nvml]
    others = tuple(named(pid, number=2) for pid in range(7, 9))
    if clients:
        listed = usage(*clients, grant=replace(usage().grant, processes=6) if usage().grant else None)
        served = {**contexts, **{other.pid: 1 for other in others}}
        assert summary(reading(listed, served, named=others)) == []


@given(st.integers(1, 60), st.integers(1, 60))
def test_no_container_alone_keeps_the_others_first_contexts_out(processes: int, per_gpu: int) -> None:
    most = most_contexts(processes, per_gpu)
    assert most >= processes
    if processes * per_gpu <= CONTEXTS_OF_A_GPU:
        assert most + (per_gpu - 1) * processes <= CONTEXTS_OF_A_GPU


@pytest.mark.parametrize(
    ("processes", "per_gpu", "most"),
    [(1, 8, 4), (2, 8, 8), (1, 45, 4), (1, 46, 3), (1, 48, 1), (1, 60, 1), (12, 4, 12), (24, 2, 24), (48, 1, 48)],
)
def test_a_process_may_have_four_contexts_where_there_is_room(processes: int, per_gpu: int, most: int) -> None:
    assert most_contexts(processes, per_gpu) == most
