"""A GPU is idle only when the order of withdrawing and reading proves it; and what a node without MPS means."""

from pathlib import Path

import pytest

from gpushare.agent.podresources.holdings import KubeletView, Slots
from gpushare.agent.reconcile.daemon_files import DaemonFiles
from gpushare.agent.reconcile.decision import DecisionInput, decide, idle
from gpushare.api.conditions import DaemonReason
from gpushare.mps.layout import gpu_dir
from gpushare.mps.wire import DaemonState, DesiredDaemon
from tests.unit.agent.reconcile.test_readiness import GOOD, LIMITS

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
    found = decide(
        DecisionInput(
            now=1000.0,
            assignments=None,
            shares={},
            on_disk={"GPU-1": DaemonFiles(gpu_dir(tmp_path, "GPU-1"), wanted, state, None, False)},
            views={"GPU-1": GOOD.view} if GOOD.view else {},
            kubelet=None,
            pending={},
            server_since={},
            withdrawn_at={},
            client_ceiling=48,
            brief_seconds=5.0,
            daemonless="no nvidia-cuda-mps-server",
        )
    )["GPU-1"].readiness
    assert found.reason is expected, sentence
    assert (found.message == "no nvidia-cuda-mps-server") is (expected is DaemonReason.DAEMON_FAILED)
