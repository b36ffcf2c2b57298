"""What befell a GPU or its daemon, told once on the GpuNode, and put down to nobody."""

from dataclasses import replace

import pytest

from gpushare.agent.faults.reports import SUSPECT_SECONDS, SUSPECTS_TOLD, XID_SECONDS, FaultReports, GpuLook, look_at
from gpushare.agent.reconcile.readiness import Readiness
from gpushare.api.conditions import DaemonReason, EventReason
from gpushare.nvml.types import Xid

GPU = "GPU-0"
CALM = GpuLook(GPU, clients=("team/a", "team/b"))
FAULTED = replace(
    CALM, faults=1, last_fault="a fatal fault; server 501 is FAULT: [x] Client {PID: 7} fatal", clients=()
)


@pytest.fixture
def reports() -> FaultReports:
    reports = FaultReports("here")
    assert reports.look([CALM], 0.0) == []
    return reports


@pytest.mark.parametrize(
    ("change", "reason", "words"),
    [
        pytest.param(
            {"restarts": 1, "last_failure": "the control daemon was ended by SIGKILL: [x] Startup"},
            EventReason.DAEMON_RESTARTED,
            "the control daemon was ended by SIGKILL: [x] Startup; its clients got error 806",
            id="a daemon that was started again",
        ),
        pytest.param(
            {"servers_lost": 1, "last_failure": "MPS server 501 ended"},
            EventReason.DAEMON_RESTARTED,
            "MPS server 501 ended",
            id="a server that ended",
        ),
        pytest.param(
            {"reason": DaemonReason.GPU_LOST, "message": "NVML no longer reaches it"},
            EventReason.GPU_LOST,
            "NVML no longer reaches it",
            id="a lost GPU",
        ),
        pytest.param(
            {"reason": DaemonReason.CLIENT_TABLE_FULL, "message": "48 of 48 client contexts are taken"},
            EventReason.CLIENT_TABLE_FULL,
            "48 of 48",
            id="a full table",
        ),
    ],
)
def test_a_change_is_told_once(
    reports: FaultReports, change: dict[str, object], reason: EventReason, words: str
) -> None:
    later = replace(CALM, **change)  # type: ignore[arg-type]
    [news] = reports.look([later], 1.0)
    assert (news.reason, news.kind, news.regarding["name"]) == (reason, "Warning", "here")
    assert words in news.note
    assert reports.look([later], 2.0) == []


def test_a_fault_is_told_with_the_daemons_line_its_xid_and_everybody_who_may_be_the_cause(
    reports: FaultReports,
) -> None:
    reports.xid(Xid(GPU, 31), 0.5)
    [news] = reports.look([FAULTED], 1.0)
    assert news.reason is EventReason.GPU_FAULT
    assert "server 501 is FAULT: [x] Client {PID: 7} fatal. The driver logged Xid 31." in news.note
    assert "one of its clients, and log and Xid may name an innocent one: team/a, team/b." in news.note
    assert reports.look([FAULTED], XID_SECONDS + 1) == [], "the Xid belongs to the fault"


def test_a_client_that_has_just_gone_may_be_the_cause_and_one_that_left_long_before_is_not(
    reports: FaultReports,
) -> None:
    both = replace(CALM, clients=("team/a", "team/b", "team/left"))
    reports.look([both], 1.0)
    reports.look([CALM], 2.0 + SUSPECT_SECONDS)
    reports.look([replace(CALM, clients=("team/a",))], 3.0 + SUSPECT_SECONDS)
    [news] = reports.look([replace(FAULTED, clients=("team/a",))], 4.0 + SUSPECT_SECONDS)
    assert "an innocent one: team/a, team/b." in news.note


@pytest.mark.parametrize(("absent", "suspects"), [(0.4, "team/new, team/a, team/b"), (0.6, "team/a, team/b")])
def test_who_held_nothing_yet_when_the_driver_had_told_of_the_fault_is_not_the_cause(
    reports: FaultReports, absent: float, suspects: str
) -> None:
    reports.xid(Xid(GPU, 63), 0.3)
    reports.xid(Xid(GPU, 31), 0.5)
    [news] = reports.look([replace(FAULTED, clients=("team/new",), absent={"team/new": absent})], 1.0)
    assert f"an innocent one: {suspects}." in news.note


def test_a_pod_of_the_same_name_as_the_cause_does_not_hide_it(reports: FaultReports) -> None:
    reports.xid(Xid(GPU, 31), 0.5)
    [news] = reports.look([replace(FAULTED, clients=("team/a",), absent={"team/a": 0.6})], 1.0)
    assert "an innocent one: team/a, team/b." in news.note


def test_a_look_tells_of_its_own_clients_when_they_were_absent() -> None:
    absent = {"team/here": 1.0, "team/elsewhere": 2.0}
    look = look_at(Readiness(DaemonReason.READY, ""), None, None, ["team/here", "team/always"], absent, GPU)
    assert look.absent == {"team/here": 1.0}


def test_a_pod_that_holds_a_slot_is_a_suspect_although_no_reading_showed_its_client() -> None:
    verdict = Readiness(DaemonReason.READY, "")
    assert look_at(verdict, None, None, ["team/crashed"], {}, GPU).clients == ("team/crashed",)


def test_an_xid_without_a_fault_is_told_after_a_while(reports: FaultReports) -> None:
    reports.xid(Xid(GPU, 63), 0.5)
    assert reports.look([CALM], 1.0) == []
    [news] = reports.look([CALM], 0.5 + XID_SECONDS)
    assert (news.reason, "Xid 63, without a fault of the MPS server" in news.note) == (EventReason.GPU_FAULT, True)


def test_an_xid_of_a_gpu_that_no_share_has_is_passed_over(reports: FaultReports) -> None:
    reports.xid(Xid("GPU-9", 31), 0.5)
    assert reports.look([CALM], 100.0) == []


def test_what_an_earlier_agent_saw_is_not_told_again_but_what_holds_is() -> None:
    assert FaultReports("here").look([replace(FAULTED, restarts=3)], 0.0) == []
    lost = replace(CALM, reason=DaemonReason.GPU_LOST, message="lost")
    assert [news.reason for news in FaultReports("here").look([lost], 0.0)] == [EventReason.GPU_LOST]


def test_a_supervisor_that_counts_from_0_again_is_no_news(reports: FaultReports) -> None:
    reports.look([replace(CALM, restarts=3, last_failure="it ended")], 1.0)
    assert reports.look([CALM], 2.0) == []
    assert len(reports.look([replace(CALM, restarts=1, last_failure="it ended")], 3.0)) == 1


def test_a_gpu_that_was_given_back_is_known_no_more(reports: FaultReports) -> None:
    reports.look([], 1.0)
    assert reports.look([FAULTED], 2.0) == []


def test_of_many_suspects_some_are_named() -> None:
    reports = FaultReports("here")
    reports.look([replace(CALM, clients=tuple(f"team/{number}" for number in range(48)))], 0.0)
    [news] = reports.look([FAULTED], 1.0)
    assert f"and {48 - SUSPECTS_TOLD} more" in news.note


def test_where_nobody_is_known_nobody_is_suspected() -> None:
    reports = FaultReports("here")
    reports.look([replace(CALM, clients=())], 0.0)
    [news] = reports.look([FAULTED], 1.0)
    assert "Which process is to blame is not known" in news.note
