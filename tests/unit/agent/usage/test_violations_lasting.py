"""Offences that last become findings; findings whose offence is gone go."""

from dataclasses import replace
from typing import Any

import pytest

from gpushare.agent.usage.usage import Reading, Usage
from gpushare.agent.usage.violations import CLEAR_SECONDS, ConfirmedViolation, ViolationTracker
from gpushare.api.gpunode import MAX_FINDINGS, Finding
from tests.unit.agent.observed_pods import UUID, process, uid, usage

WALL = "2026-01-01T00:00:00Z"
OURS = {UUID: "a"}
HOST: dict[str, Any] = {"pod_uid": "", "namespace": "", "pod": "", "container": "", "slot": False, "grant": None}
OVER = usage(process(11, 9000))
WITHIN = usage(process(11, 4000))


class Loop:
    """Readings two seconds apart."""

    def __init__(self, *before: Finding) -> None:
        self.now = 100.0
        self.findings = ViolationTracker(before, self.now)
        self.gone: list[Finding] = []

    def read(self, *usages: Usage, seconds: float = 2.0) -> tuple[ConfirmedViolation, ...]:
        self.now += seconds
        reading = Reading(UUID, "a", self.now, 143155, usages)
        judgement = self.findings.judge([reading], OURS, WALL)
        self.gone += judgement.gone
        return judgement.standing

    def until_told(self, *usages: Usage) -> Finding:
        self.read(*usages)
        self.read(*usages)
        return self.findings.told()[0]


def test_one_reading_tells_nothing_and_two_do() -> None:
    loop = Loop()
    assert loop.read(OVER) == ()
    assert loop.findings.told() == []
    (standing,) = loop.read(OVER)
    (finding,) = loop.findings.told()
    assert standing.finding == finding
    assert (finding.reason, finding.granted, finding.observed) == ("MemoryAboveGrant", 8192, 9000)
    assert (finding.namespace, finding.pod, finding.container, finding.pid) == ("team", "pod-1", "app", 11)
    assert (finding.since, finding.share, finding.uuid) == (WALL, "a", UUID)
    assert [culprit.pid for culprit in standing.culprits] == [11]


def test_a_reading_in_between_that_shows_nothing_starts_the_count_anew() -> None:
    loop = Loop()
    loop.read(OVER)
    loop.read(WITHIN)
    assert loop.read(OVER) == ()


def test_a_finding_keeps_its_figures_while_it_stands() -> None:
    loop = Loop()
    first = loop.until_told(OVER)
    loop.read(usage(process(11, 50_000)))
    assert loop.findings.told() == [first]


def test_a_process_that_only_the_latest_reading_names_is_not_to_be_ended() -> None:
    loop = Loop()
    loop.until_told(OVER)
    (standing,) = loop.read(usage(process(12, 9000)))
    assert standing.culprits == ()
    (standing,) = loop.read(usage(process(12, 9000)))
    assert [culprit.pid for culprit in standing.culprits] == [12]


def test_a_pid_that_is_another_process_by_now_is_not_to_be_ended() -> None:
    loop = Loop()
    loop.read(OVER)
    (standing,) = loop.read(usage(process(11, 9000, started=999)))
    assert standing.culprits == ()


def test_a_finding_goes_some_seconds_after_its_offence() -> None:
    loop = Loop()
    finding = loop.until_told(OVER)
    loop.read(seconds=CLEAR_SECONDS - 1)
    assert loop.findings.told() == [finding]
    loop.read()
    assert (loop.findings.told(), loop.gone) == ([], [finding])


def test_what_swings_about_the_limit_is_one_finding() -> None:
    loop = Loop()
    finding = loop.until_told(OVER)
    for case in (WITHIN, OVER, WITHIN, WITHIN, OVER) * 4:
        loop.read(case)
    assert (loop.findings.told(), loop.gone) == ([finding], [])


def test_without_a_new_reading_a_finding_stays() -> None:
    loop = Loop()
    finding = loop.until_told(OVER)
    loop.findings.judge([], OURS, WALL)
    assert loop.findings.told() == [finding]


@pytest.mark.parametrize("taken", [{}, {UUID: "b"}], ids=["nobody's", "another share's"])
def test_findings_on_a_gpu_that_its_share_has_no_more_go(taken: dict[str, str]) -> None:
    loop = Loop()
    finding = loop.until_told(OVER)
    assert loop.findings.judge([], taken, WALL).gone == (finding,)
    assert loop.findings.told() == []


def test_a_client_of_a_pod_that_was_just_deleted_by_force_is_given_time_to_end() -> None:
    loop = Loop()
    lingering = usage(process(11, 500), **(HOST | {"pod_uid": uid(1)}))
    for _ in range(15):
        loop.read(lingering)
    assert loop.findings.told() == []
    loop.read(lingering)
    assert [finding.reason for finding in loop.findings.told()] == ["NoGrant"]


def test_a_restarted_agent_goes_on_with_the_findings_that_were_told() -> None:
    finding = Loop().until_told(OVER)
    successor = Loop(finding)
    assert successor.findings.told() == [finding]
    (standing,) = successor.read(OVER)
    assert (standing.finding, standing.culprits) == (finding, ())
    (standing,) = successor.read(OVER)
    assert [culprit.pid for culprit in standing.culprits] == [11]
    assert successor.findings.told() == [finding]


def test_a_finding_that_was_told_before_the_restart_and_holds_no_more_goes() -> None:
    finding = Loop().until_told(OVER)
    successor = Loop(finding)
    successor.read(WITHIN, seconds=CLEAR_SECONDS)
    assert (successor.findings.told(), successor.gone) == ([], [finding])


def test_that_an_offender_was_ended_is_told_until_its_process_is_gone() -> None:
    loop = Loop()
    loop.until_told(OVER)
    (standing,) = loop.read(usage(replace(process(11, 9000), ended=True)))
    assert standing.culprits == ()
    assert [told.ended for told in loop.findings.told()] == [True]
    loop.read(seconds=CLEAR_SECONDS)
    assert loop.findings.told() == []


def test_each_process_of_the_host_is_a_finding_of_its_own() -> None:
    loop = Loop()
    both = [usage(process(pid, 500, mps=False), **HOST) for pid in (11, 12)]
    loop.read(*both)
    loop.read(*both)
    assert [finding.pid for finding in loop.findings.told()] == [11, 12]


@pytest.mark.parametrize("count", [MAX_FINDINGS + 10])
def test_the_list_is_bounded(count: int) -> None:
    loop = Loop()
    many = [usage(process(pid, 500, mps=False), **HOST) for pid in range(1, count)]
    loop.read(*many)
    loop.read(*many)
    assert len(loop.findings.told()) == MAX_FINDINGS
