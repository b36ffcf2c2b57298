"""Violations that last become findings; findings whose violation has ended are cleared."""

from dataclasses import replace
from typing import Any

import pytest

from gpushare.agent.observe.usage import Reading, Usage
from gpushare.agent.observe.violations import KEPT_SECONDS, ConfirmedViolation, ViolationTracker
from gpushare.api.gpunode import MAX_FINDINGS, Finding
from tests.unit.agent.observed_pods import UUID, process, uid, usage

CLEAR_SECONDS = 10.0
WALL = "2026-01-01T00:00:00Z"
OURS = {UUID: "a"}
HOST: dict[str, Any] = {"pod_uid": "", "namespace": "", "pod": "", "container": "", "slot": False, "grant": None}
OVER = usage(process(11, 9000))
WITHIN = usage(process(11, 4000))


class Loop:
    """Readings two seconds apart."""

    def __init__(self, *before: Finding) -> None:
        self.now = 100.0
        self.tracker = ViolationTracker(before, self.now, CLEAR_SECONDS)
        self.cleared: list[Finding] = []

    def read(self, *usages: Usage, seconds: float = 2.0) -> tuple[ConfirmedViolation, ...]:
        self.now += seconds
        reading = Reading(UUID, "a", self.now, 143155, usages)
        judgement = self.tracker.judge([reading], OURS, WALL)
        self.cleared += judgement.cleared
        return judgement.confirmed

    def until_found(self, *usages: Usage) -> Finding:
        self.read(*usages)
        self.read(*usages)
        return self.tracker.findings()[0]


def test_one_reading_makes_no_finding_and_two_do() -> None:
    loop = Loop()
    assert loop.read(OVER) == ()
    assert loop.tracker.findings() == []
    (confirmed,) = loop.read(OVER)
    (finding,) = loop.tracker.findings()
    assert confirmed.finding == finding
    assert (finding.reason, finding.granted, finding.observed) == ("MemoryAboveGrant", 8192, 9000)
    assert (finding.namespace, finding.pod, finding.container, finding.pid) == ("team", "pod-1", "app", 11)
    assert (finding.since, finding.share, finding.uuid) == (WALL, "a", UUID)
    assert [process.pid for process in confirmed.to_end] == [11]


def test_what_is_not_known_is_a_finding_after_a_minute_and_no_end() -> None:
    loop = Loop()
    unknown = usage(replace(process(7, 500, mps=False), unknown="/proc/7/mountinfo: it has more than 1 bytes"))
    for _ in range(30):
        assert loop.read(unknown) == ()
    (confirmed,) = loop.read(unknown)
    assert (confirmed.finding.reason, confirmed.finding.container) == ("NotAnMpsClient", "app")
    assert [item.pid for item in confirmed.to_end] == [7]


def test_readings_of_nearly_the_same_moment_confirm_and_end_nothing() -> None:
    loop = Loop()
    loop.tracker = ViolationTracker((), loop.now, CLEAR_SECONDS, apart_seconds=1.5)
    loop.read(OVER)
    for _ in range(4):
        assert loop.read(OVER, seconds=0.3) == ()
    assert loop.tracker.findings() == []
    (confirmed,) = loop.read(OVER, seconds=0.4)
    assert [process.pid for process in confirmed.to_end] == [11]


def test_a_reading_in_between_that_shows_nothing_starts_the_count_anew() -> None:
    loop = Loop()
    loop.read(OVER)
    loop.read(WITHIN)
    assert loop.read(OVER) == ()


def test_a_finding_keeps_its_figures_while_it_stands() -> None:
    loop = Loop()
    first = loop.until_found(OVER)
    loop.read(usage(process(11, 50_000)))
    assert loop.tracker.findings() == [first]


def test_a_process_that_only_the_latest_reading_names_is_not_to_be_ended() -> None:
    loop = Loop()
    loop.until_found(OVER)
    (confirmed,) = loop.read(usage(process(12, 9000)))
    assert confirmed.to_end == ()
    (confirmed,) = loop.read(usage(process(12, 9000)))
    assert [process.pid for process in confirmed.to_end] == [12]


def test_a_pid_that_is_another_process_by_now_is_not_to_be_ended() -> None:
    loop = Loop()
    loop.read(OVER)
    (confirmed,) = loop.read(usage(process(11, 9000, started=999)))
    assert confirmed.to_end == ()


def test_a_finding_is_cleared_some_seconds_after_its_violation() -> None:
    loop = Loop()
    finding = loop.until_found(OVER)
    loop.read(seconds=CLEAR_SECONDS - 1)
    assert loop.tracker.findings() == [finding]
    loop.read()
    assert (loop.tracker.findings(), loop.cleared) == ([], [finding])


def test_use_that_swings_about_the_limit_is_one_finding() -> None:
    loop = Loop()
    finding = loop.until_found(OVER)
    for case in (WITHIN, OVER, WITHIN, WITHIN, OVER) * 4:
        loop.read(case)
    assert (loop.tracker.findings(), loop.cleared) == ([finding], [])


def test_without_a_new_reading_a_finding_stays() -> None:
    loop = Loop()
    finding = loop.until_found(OVER)
    loop.tracker.judge([], OURS, WALL)
    assert loop.tracker.findings() == [finding]


@pytest.mark.parametrize("taken", [{}, {UUID: "b"}], ids=["nobody's", "another share's"])
def test_findings_on_a_gpu_that_its_share_has_no_more_are_cleared(taken: dict[str, str]) -> None:
    loop = Loop()
    finding = loop.until_found(OVER)
    assert loop.tracker.judge([], taken, WALL).cleared == (finding,)
    assert loop.tracker.findings() == []


def test_a_client_of_a_pod_deleted_by_force_is_given_time_to_end() -> None:
    loop = Loop()
    lingering = usage(process(11, 500), **(HOST | {"pod_uid": uid(1)}))
    for _ in range(15):
        loop.read(lingering)
    assert loop.tracker.findings() == []
    loop.read(lingering)
    assert [finding.reason for finding in loop.tracker.findings()] == ["NoGrant"]


def test_a_restarted_agent_goes_on_with_the_findings_of_its_predecessor() -> None:
    finding = Loop().until_found(OVER)
    successor = Loop(finding)
    assert successor.tracker.findings() == [finding]
    (confirmed,) = successor.read(OVER)
    assert (confirmed.finding, confirmed.to_end) == (finding, ())
    (confirmed,) = successor.read(OVER)
    assert [process.pid for process in confirmed.to_end] == [11]
    assert successor.tracker.findings() == [finding]


def test_a_finding_of_the_predecessor_that_holds_no_more_is_cleared() -> None:
    finding = Loop().until_found(OVER)
    successor = Loop(finding)
    successor.read(WITHIN, seconds=CLEAR_SECONDS)
    assert (successor.tracker.findings(), successor.cleared) == ([], [finding])


def test_a_finding_says_that_a_process_was_ended_until_the_process_is_gone() -> None:
    loop = Loop()
    loop.until_found(OVER)
    (confirmed,) = loop.read(usage(replace(process(11, 9000), terminated=True)))
    assert confirmed.to_end == ()
    assert [finding.ended for finding in loop.tracker.findings()] == [True]
    loop.read(seconds=CLEAR_SECONDS)
    assert loop.tracker.findings() == []


KEPT = replace(process(11, 9000), terminated=True)
"""A process that goes on after the end of its contexts, with memory above the grant."""


def test_memory_kept_above_the_grant_after_the_end_is_signalled() -> None:
    loop = Loop()
    loop.until_found(OVER)
    early = [loop.read(usage(KEPT)) for _ in range(int(KEPT_SECONDS) // 2)]
    assert [confirmed.to_signal for (confirmed,) in early] == [()] * len(early)
    (confirmed,) = loop.read(usage(KEPT))
    assert confirmed.to_signal == (KEPT,)


@pytest.mark.parametrize(
    "kept",
    [
        pytest.param(usage(replace(KEPT, memory_mib=4000)), id="within the grant"),
        pytest.param(usage(KEPT, by_default=True), id="a grant that is only assumed"),
        pytest.param(usage(process(11, 9000)), id="its contexts were not ended"),
    ],
)
def test_memory_that_no_ended_process_keeps_above_a_grant_is_let_be(kept: Usage) -> None:
    loop = Loop()
    loop.until_found(OVER)
    for _ in range(20):
        assert not any(confirmed.to_signal for confirmed in loop.read(kept))


def test_memory_freed_meanwhile_begins_the_time_anew() -> None:
    loop = Loop()
    loop.until_found(OVER)
    loop.read(usage(KEPT))
    loop.read(WITHIN)
    (confirmed,) = loop.read(usage(KEPT), seconds=KEPT_SECONDS)
    assert confirmed.to_signal == ()


def test_ever_new_clients_beside_it_do_not_save_who_keeps_memory() -> None:
    """Each is named by one reading only; all are ended before the signal, since it may end their container."""
    loop = Loop()
    loop.until_found(OVER)
    for pid in range(12, 12 + int(KEPT_SECONDS) // 2):
        (confirmed,) = loop.read(usage(KEPT, process(pid)))
        assert (confirmed.to_end, confirmed.to_signal) == ((), ())
    (confirmed,) = loop.read(usage(KEPT, process(99)))
    assert [[each.pid for each in some] for some in (confirmed.to_end, confirmed.to_signal)] == [[99], [11]]


def test_each_process_of_the_host_is_a_finding_of_its_own() -> None:
    loop = Loop()
    both = [usage(process(pid, 500, mps=False), **HOST) for pid in (11, 12)]
    loop.read(*both)
    loop.read(*both)
    assert [finding.pid for finding in loop.tracker.findings()] == [11, 12]


@pytest.mark.parametrize("count", [MAX_FINDINGS + 10])
def test_the_list_is_bounded(count: int) -> None:
    loop = Loop()
    many = [usage(process(pid, 500, mps=False), **HOST) for pid in range(1, count)]
    loop.read(*many)
    loop.read(*many)
    assert len(loop.tracker.findings()) == MAX_FINDINGS


@pytest.mark.parametrize(
    ("case", "seconds"),
    [
        pytest.param(usage(process(11), container="side", slot=False, grant=None), 30, id="of a pod without a slot"),
        pytest.param(usage(process(11), container="", slot=False, grant=None), 120, id="of a container not known yet"),
    ],
)
def test_a_client_without_a_grant_is_a_finding_once_it_can_be_no_delay(case: Usage, seconds: int) -> None:
    """A pod whose status is too large to be written shows none of its containers, ever."""
    loop = Loop()
    for _ in range(seconds // 2):
        assert loop.read(case) == ()
    (confirmed,) = loop.read(case)
    assert (confirmed.finding.reason, confirmed.to_end) == ("NoGrant", ())
