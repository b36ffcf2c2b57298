"""What happens to a GPU or its MPS daemon is one event on the GpuNode that blames no client."""

from dataclasses import replace

import pytest

from gpushare.agent.attach.arrivals import Attaches
from gpushare.agent.faults.reports import (
    ARRIVAL_SECONDS,
    MAX_SUSPECTS_NAMED,
    SUSPECT_SECONDS,
    XID_SECONDS,
    ArrivedClient,
    FaultReports,
    GpuHealth,
    gpu_health,
)
from gpushare.agent.observe.usage import Reading
from gpushare.agent.reconcile.readiness import Readiness
from gpushare.api.conditions import DaemonReason, EventReason
from gpushare.mps.wire import Arrival
from gpushare.nvml.types import Xid
from tests.unit.agent.observed_pods import process, usage

GPU = "GPU-0"
CALM = GpuHealth(GPU, clients=("team/a", "team/b"))
FAULTED = replace(
    CALM, faults=1, last_fault="a fatal fault; server 501 is FAULT: [x] Client {PID: 7} fatal", clients=()
)


@pytest.fixture
def reports() -> FaultReports:
    reports = FaultReports("here")
    assert reports.update([CALM], 0.0) == []
    return reports


@pytest.mark.parametrize(
    ("change", "reason", "words"),
    [
        pytest.param(
            {"restarts": 1, "last_failure": "the control daemon was ended by SIGKILL: [x] Startup"},
            EventReason.DAEMON_RESTARTED,
            "the control daemon was ended by SIGKILL: [x] Startup; its clients got error 806. "
            "Pods with a part of the GPU: team/a, team/b.",
            id="a daemon that was started again",
        ),
        pytest.param(
            {"restarts": 1, "last_failure": "the control daemon ended with its container", "lost_contexts": 3},
            EventReason.DAEMON_RESTARTED,
            "the control daemon ended with its container; its clients, 3 CUDA contexts, got error 806.",
            id="a daemon that ended with its clients",
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
def test_a_change_is_reported_once(
    reports: FaultReports, change: dict[str, object], reason: EventReason, words: str
) -> None:
    later = replace(CALM, **change)  # type: ignore[arg-type]
    [event] = reports.update([later], 1.0)
    assert (event.reason, event.type, event.regarding["name"]) == (reason, "Warning", "here")
    assert words in event.note
    assert reports.update([later], 2.0) == []


def test_a_fault_is_reported_with_line_xid_and_suspects(
    reports: FaultReports,
) -> None:
    reports.add_xid(Xid(GPU, 31), 0.5)
    [event] = reports.update([FAULTED], 1.0)
    assert event.reason is EventReason.GPU_FAULT
    assert "server 501 is FAULT: [x] Client {PID: 7} fatal. The driver logged Xid 31." in event.note
    assert "one of its clients, and log and Xid may name an innocent one: team/a, team/b." in event.note
    assert reports.update([FAULTED], XID_SECONDS + 1) == [], "the Xid belongs to the fault"


@pytest.mark.parametrize(
    ("xid", "reason", "is_hardware"),
    [
        (31, DaemonReason.FAULTED, False),
        (43, DaemonReason.FAULTED, False),
        (79, DaemonReason.FAULTED, True),
        (48, DaemonReason.FAULTED, True),
        (31, DaemonReason.GPU_LOST, True),
    ],
)
def test_no_client_is_suspected_where_the_gpu_itself_failed(
    reports: FaultReports, xid: int, reason: DaemonReason, is_hardware: bool
) -> None:
    reports.add_xid(Xid(GPU, xid), 0.5)
    event = reports.update([replace(FAULTED, reason=reason)], 1.0)[0]
    assert event.reason is EventReason.GPU_FAULT
    assert ("none of its clients" in event.note) is is_hardware
    assert ("team/a" in event.note) is not is_hardware


def test_lost_contexts_are_reported_once(
    reports: FaultReports,
) -> None:
    assert reports.update([replace(CALM, lost_contexts=2)], 1.0) == [], "no daemon was started yet"
    [event] = reports.update([replace(CALM, lost_contexts=2, restarts=1)], 2.0)
    assert "its clients, 2 CUDA contexts, got error 806" in event.note
    [event] = reports.update([replace(CALM, lost_contexts=2, restarts=2)], 3.0)
    assert "its clients got error 806" in event.note, "it had no client"
    [event] = reports.update([replace(CALM, lost_contexts=3, restarts=3, servers_lost=1)], 4.0)
    assert "its clients, 1 CUDA context, got error 806" in event.note


def test_a_pod_that_left_long_before_is_no_client_of_a_daemon_that_ended(reports: FaultReports) -> None:
    reports.update([replace(CALM, clients=())], 1.0)
    [event] = reports.update([replace(CALM, clients=(), restarts=1)], 1.0 + SUSPECT_SECONDS)
    assert event.note == f"GPU {GPU}: the MPS daemon ended; its clients got error 806."


def test_a_client_that_has_just_gone_is_a_suspect(
    reports: FaultReports,
) -> None:
    both = replace(CALM, clients=("team/a", "team/b", "team/left"))
    reports.update([both], 1.0)
    reports.update([CALM], 2.0 + SUSPECT_SECONDS)
    reports.update([replace(CALM, clients=("team/a",))], 3.0 + SUSPECT_SECONDS)
    [event] = reports.update([replace(FAULTED, clients=("team/a",))], 4.0 + SUSPECT_SECONDS)
    assert "an innocent one: team/a, team/b." in event.note


@pytest.mark.parametrize(("absent", "suspects"), [(0.4, "team/new, team/a, team/b"), (0.6, "team/a, team/b")])
def test_pods_without_a_slot_when_the_xid_arrived_are_not_suspects(
    reports: FaultReports, absent: float, suspects: str
) -> None:
    reports.add_xid(Xid(GPU, 63), 0.3)
    reports.add_xid(Xid(GPU, 31), 0.5)
    [event] = reports.update([replace(FAULTED, clients=("team/new",), absent={"team/new": absent})], 1.0)
    assert f"an innocent one: {suspects}." in event.note


def test_a_pod_of_the_same_name_as_the_cause_does_not_hide_it(reports: FaultReports) -> None:
    reports.add_xid(Xid(GPU, 31), 0.5)
    [event] = reports.update([replace(FAULTED, clients=("team/a",), absent={"team/a": 0.6})], 1.0)
    assert "an innocent one: team/a, team/b." in event.note


def test_only_the_gpus_own_clients_count_as_absent() -> None:
    absent = {"team/here": 1.0, "team/elsewhere": 2.0}
    health = gpu_health(Readiness(DaemonReason.READY, ""), None, None, ["team/here", "team/always"], absent, GPU)
    assert health.absent == {"team/here": 1.0}


def test_a_pod_with_a_slot_is_a_suspect_without_a_reading() -> None:
    readiness = Readiness(DaemonReason.READY, "")
    assert gpu_health(readiness, None, None, ["team/crashed"], {}, GPU).clients == ("team/crashed",)


def test_a_pod_that_holds_a_slot_and_never_attached_is_no_suspect() -> None:
    attaches = Attaches(without_client=frozenset({"team/idle"}))
    ready = Readiness(DaemonReason.READY, "")
    assert gpu_health(ready, None, None, ["team/a", "team/idle"], {}, GPU, attaches).clients == ("team/a",)


def test_one_that_nvml_shows_is_a_suspect_whatever_the_broker_says() -> None:
    reading = Reading(GPU, "a", 1.0, 1000, (usage(process(7)),))
    attaches = Attaches(without_client=frozenset({"team/pod-1"}))
    health = gpu_health(Readiness(DaemonReason.READY, ""), None, reading, ["team/pod-1"], {}, GPU, attaches)
    assert health.clients == ("team/pod-1",)


def test_a_fault_is_reported_with_the_latest_to_attach(reports: FaultReports) -> None:
    arrivals = [Arrival(pid=8, pod_uid="b", container="app", at=997.5), Arrival(pid=7, pod_uid="gone", at=999.0)]
    health = gpu_health(
        Readiness(DaemonReason.READY, ""), None, None, (), {}, GPU, Attaches(tuple(arrivals)), {"b": "team/b"}
    )
    old = ArrivedClient("team/a", "app", 6, 1000.0 - ARRIVAL_SECONDS - 1)
    [event] = reports.update([replace(FAULTED, arrived=(*health.arrived, old))], 1000.0)
    assert event.note.endswith(" The latest to attach: team/b (container app, PID 8) 2.5 s ago.")


def test_an_xid_without_a_fault_is_reported_after_a_while(reports: FaultReports) -> None:
    reports.add_xid(Xid(GPU, 63), 0.5)
    assert reports.update([CALM], 1.0) == []
    [event] = reports.update([CALM], 0.5 + XID_SECONDS)
    assert (event.reason, "Xid 63, without a fault of the MPS server" in event.note) == (EventReason.GPU_FAULT, True)


def test_an_xid_of_a_gpu_that_no_share_has_is_ignored(reports: FaultReports) -> None:
    reports.add_xid(Xid("GPU-9", 31), 0.5)
    assert reports.update([CALM], 100.0) == []


def test_a_new_agent_reports_a_lasting_state_and_no_past_counts() -> None:
    assert FaultReports("here").update([replace(FAULTED, restarts=3)], 0.0) == []
    lost = replace(CALM, reason=DaemonReason.GPU_LOST, message="lost")
    assert [event.reason for event in FaultReports("here").update([lost], 0.0)] == [EventReason.GPU_LOST]


def test_a_supervisor_that_counts_from_0_again_is_no_change(reports: FaultReports) -> None:
    reports.update([replace(CALM, restarts=3, last_failure="it ended")], 1.0)
    assert reports.update([CALM], 2.0) == []
    assert len(reports.update([replace(CALM, restarts=1, last_failure="it ended")], 3.0)) == 1


GPU_FAULT, DAEMON_RESTARTED = EventReason.GPU_FAULT, EventReason.DAEMON_RESTARTED
UNREAD = gpu_health(
    Readiness(DaemonReason.SUPERVISOR_SILENT, "its state is torn"), None, None, ["team/a", "team/b"], {}, GPU
)
ENDED = replace(FAULTED, restarts=2, servers_lost=1, lost_contexts=3, last_failure="it ended")


@pytest.mark.parametrize(
    ("seen", "reasons"),
    [
        pytest.param([CALM, ENDED, UNREAD, ENDED], [[], [GPU_FAULT, DAEMON_RESTARTED], [], []], id="told before"),
        pytest.param([CALM, UNREAD, ENDED, ENDED], [[], [], [GPU_FAULT, DAEMON_RESTARTED], []], id="meanwhile"),
        pytest.param([UNREAD, UNREAD, ENDED, ENDED], [[], [], [], []], id="before this agent"),
        pytest.param([UNREAD, CALM, UNREAD, ENDED], [[], [], [], [GPU_FAULT, DAEMON_RESTARTED]], id="after all"),
        pytest.param(
            [ENDED, UNREAD, replace(ENDED, faults=2)], [[], [], [GPU_FAULT]], id="another one while it is unreadable"
        ),
        pytest.param([replace(ENDED, faults=3), UNREAD, ENDED], [[], [], [GPU_FAULT]], id="of a new supervisor"),
    ],
)
def test_an_unreadable_state_hides_no_fault_and_repeats_none(
    seen: list[GpuHealth], reasons: list[list[EventReason]]
) -> None:
    reports = FaultReports("here")
    told = [reports.update([health], float(at)) for at, health in enumerate(seen)]
    assert [[event.reason for event in events] for events in told] == reasons


def test_contexts_lost_before_the_first_state_are_not_reported_later() -> None:
    reports = FaultReports("here")
    reports.update([UNREAD], 0.0)
    reports.update([replace(CALM, restarts=2, lost_contexts=3)], 1.0)
    [event] = reports.update([replace(CALM, restarts=3, lost_contexts=4)], 2.0)
    assert "its clients, 1 CUDA context, got error 806" in event.note


def test_a_lost_gpu_is_told_though_its_state_cannot_be_read(reports: FaultReports) -> None:
    [event] = reports.update([replace(UNREAD, reason=DaemonReason.GPU_LOST, message="lost")], 1.0)
    assert event.reason is EventReason.GPU_LOST


def test_a_gpu_that_was_released_is_forgotten(reports: FaultReports) -> None:
    reports.update([], 1.0)
    assert reports.update([FAULTED], 2.0) == []


def test_of_many_suspects_some_are_named() -> None:
    reports = FaultReports("here")
    reports.update([replace(CALM, clients=tuple(f"team/{number}" for number in range(48)))], 0.0)
    [event] = reports.update([FAULTED], 1.0)
    assert f"and {48 - MAX_SUSPECTS_NAMED} more" in event.note


def test_where_no_client_is_known_none_is_suspected() -> None:
    reports = FaultReports("here")
    reports.update([replace(CALM, clients=())], 0.0)
    [event] = reports.update([FAULTED], 1.0)
    assert "Which process caused it is not known" in event.note
