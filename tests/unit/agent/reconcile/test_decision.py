"""A GPU is idle only when the order of withdrawing and reading proves it; and what a node without MPS means."""

from dataclasses import replace
from pathlib import Path

import pytest

from gpushare.agent.podresources.holdings import KubeletView, Slots
from gpushare.agent.reconcile.assignments import GpuPlan, GpuStage
from gpushare.agent.reconcile.daemon_files import DaemonFiles
from gpushare.agent.reconcile.decision import DecisionInput, GpuAssessment, assess, decide, idle
from gpushare.agent.reconcile.readiness import Readiness
from gpushare.api.conditions import DaemonReason
from gpushare.mps.layout import gpu_dir
from gpushare.mps.wire import DaemonState, DesiredDaemon
from tests.unit.agent.dra.objects import share
from tests.unit.agent.reconcile.test_readiness import GOOD, LIMITS

GIVEN = DecisionInput(
    now=1000.0,
    assignments=None,
    shares={},
    on_disk={},
    views={"GPU-1": GOOD.view} if GOOD.view else {},
    kubelet=None,
    pending={},
    server_since={},
    withdrawn_at={},
    client_ceiling=48,
    brief_seconds=5.0,
)
KEY = ("a", "GPU-1")
NONE: Slots = frozenset()
SOME: Slots = frozenset({3})


@pytest.mark.parametrize(
    ("sentence", "withdrawn_at", "started", "allocatable", "held", "pending", "expected"),
    [
        ("withdrawn, confirmed, nothing held: idle", 10.0, 11.0, NONE, NONE, NONE, True),
        ("while free slots are offered it is never idle", None, 11.0, NONE, NONE, NONE, False),
        ("a reading that began before the withdrawal proves nothing", 10.0, 9.0, NONE, NONE, NONE, False),
        ("nor one that began at the same instant", 10.0, 10.0, NONE, NONE, NONE, False),
        ("a slot that the kubelet could still allocate", 10.0, 11.0, SOME, NONE, NONE, False),
        ("a slot that a container holds", 10.0, 11.0, NONE, SOME, NONE, False),
        ("a slot handed out a moment ago", 10.0, 11.0, NONE, NONE, SOME, False),
    ],
)  # fmt: skip
def test_idle(
    sentence: str,
    withdrawn_at: float | None,
    started: float,
    allocatable: Slots,
    held: Slots,
    pending: Slots,
    expected: bool,
) -> None:
    view = KubeletView(started, {KEY: allocatable, ("a", "GPU-2"): SOME}, {KEY: held, ("b", "GPU-1"): SOME})
    assert idle("a", "GPU-1", withdrawn_at, view, pending) is expected, sentence


def test_without_a_reading_nothing_is_idle() -> None:
    assert not idle("a", "GPU-1", 1.0, None, NONE)


@pytest.mark.parametrize(
    ("sentence", "runs", "stop", "expected"),
    [
        ("a GPU that waits for its first daemon says what the node lacks", False, False, DaemonReason.DAEMON_FAILED),
        ("one with a daemon is judged by that", True, False, DaemonReason.SUPERVISOR_SILENT),
        ("one that is given back just goes", False, True, DaemonReason.STOPPING),
    ],
)
def test_where_no_mps_daemon_can_be_started(
    tmp_path: Path, sentence: str, runs: bool, stop: bool, expected: DaemonReason
) -> None:
    state = DaemonState(uuid="GPU-1", share="a", heartbeat=1.0, reason=DaemonReason.READY) if runs else None
    wanted = DesiredDaemon(uuid="GPU-1", share="a", limits=LIMITS, stop=stop)
    files = DaemonFiles(gpu_dir(tmp_path, "GPU-1"), wanted, state, None, False)
    readiness = assess(replace(GIVEN, on_disk={"GPU-1": files}, daemonless="no nvidia-cuda-mps-server"))[
        "GPU-1"
    ].readiness
    assert readiness.reason is expected, sentence
    assert (readiness.message == "no nvidia-cuda-mps-server") is (expected is DaemonReason.DAEMON_FAILED)


SERVED = GpuAssessment(
    GpuPlan("GPU-1", "a", GpuStage.SERVE, LIMITS), None, Readiness(DaemonReason.READY), NONE, False, takes_pods=True
)
STARTING = replace(SERVED, readiness=Readiness(DaemonReason.STARTING, "soon"), takes_pods=False)
BRIEF = replace(STARTING, takes_pods=True)


@pytest.mark.parametrize(
    ("sentence", "assessed", "gate", "note", "accepting", "reason", "message", "shown"),
    [
        ("nothing is in the way", SERVED, "", "", True, DaemonReason.READY, "", ""),
        ("what a step waits for is shown", SERVED, "", "waits", True, DaemonReason.READY, "", "waits"),
        ("a gate that fails makes it not ready", SERVED, "full", "", False, DaemonReason.GATE_NOT_OPEN, "full", ""),
        ("and leaves a step's note", SERVED, "full", "waits", False, DaemonReason.GATE_NOT_OPEN, "full", "waits"),
        ("of one that is not ready it is the note", STARTING, "full", "", False, DaemonReason.STARTING, "soon", "full"),
        ("before any other note", STARTING, "full", "waits", False, DaemonReason.STARTING, "soon", "full"),
        ("a brief outage goes on taking pods", BRIEF, "", "", True, DaemonReason.STARTING, "soon", ""),
        ("but not behind a gate that fails", BRIEF, "full", "", False, DaemonReason.STARTING, "soon", "full"),
    ],
)
def test_a_decision_knows_what_came_of_gates_and_steps(
    sentence: str,
    assessed: GpuAssessment,
    gate: str,
    note: str,
    accepting: bool,
    reason: DaemonReason,
    message: str,
    shown: str,
) -> None:
    given = replace(GIVEN, shares={"a": share()})
    decision = decide(given, {"GPU-1": assessed}, {"GPU-1": gate}, {"GPU-1": note}).gpus["GPU-1"]
    assert decision.offer.accepting is accepting, sentence
    assert (decision.readiness.reason, decision.readiness.message, decision.note) == (reason, message, shown), sentence


def test_nobody_can_change_a_decision() -> None:
    decisions = decide(GIVEN, {"GPU-1": SERVED})
    with pytest.raises(TypeError):
        decisions.gpus["GPU-1"] = decisions.gpus["GPU-1"]  # type: ignore[index]
