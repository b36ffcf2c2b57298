"""`kubectl gpushare status`: shares, GPUs and their problems."""

from gpushare.api.gpushare import GpuShare
from gpushare.kubectl.views.status import status
from tests.unit.kubectl.cluster_objects import LIMITS, SILENT, gpu_node, share, shown


def test_status_shows_shares_gpus_and_their_problems() -> None:
    ready = {"type": "Ready", "status": "False", "reason": "DaemonNotReady", "message": "1 of 1 MPS daemon not ready",
             "lastTransitionTime": "2026-01-01T00:00:00Z"}  # fmt: skip
    state = {"summary": "0/1", "slots": {"total": 0, "used": 2}, "conditions": [ready]}
    daemon = {"uuid": "GPU-0", "share": "inference", "ready": False, "reason": "ControlTimeout",
              "desiredLimits": LIMITS, "message": "the control daemon does not answer"}  # fmt: skip
    node = gpu_node(
        "GPU-0", "GPU-1", daemons=[daemon], holders=[{"uuid": "GPU-0", "share": "inference", "slots": [0, 3]}]
    )
    unready = GpuShare.model_validate(share().wire() | {"status": state})
    report = status([unready], [node])
    text = shown(report)
    for part in (
        "inference",
        "0/1",
        "DaemonNotReady",
        "ControlTimeout",
        "does not answer",
        "Free",
        "1 of 1 MPS",
    ):
        assert part in text
    assert report.data["nodes"][0]["status"]["daemons"][0]["reason"] == "ControlTimeout"


def test_status_shows_which_claims_fit_nowhere_and_why() -> None:
    claims = {"pending": 1, "unplaced": [{"claim": "ml/big", "message": "10 percent of threads lack"}]}
    waiting = GpuShare.model_validate(share().wire() | {"status": {"claims": claims}})
    text = shown(status([waiting], [gpu_node("GPU-0")]))
    for part in ("resourceclaim/ml/big", "ClaimPending", "10 percent of threads lack"):
        assert part in text


def test_status_of_a_sound_cluster_has_no_list_of_problems() -> None:
    assert "MESSAGE" not in shown(status([], [gpu_node("GPU-0")]))
    assert "no GpuShare; create one" in shown(status([], []))


def test_a_message_of_a_node_is_shown_literally_and_never_as_markup() -> None:
    daemon = {
        "uuid": "GPU-0",
        "share": "a",
        "reason": "DaemonFailed",
        "message": "[red]odd[/red] [/]",
        "desiredLimits": LIMITS,
    }
    assert "[red]odd[/red] [/]" in shown(status([], [gpu_node("GPU-0", daemons=[daemon])]))


def test_status_of_a_silent_agents_gpus_is_unknown() -> None:
    daemon = {"uuid": "GPU-0", "share": "inference", "ready": False, "reason": "Starting", "desiredLimits": LIMITS}
    text = shown(status([], [gpu_node("GPU-0", daemons=[daemon], conditions=[SILENT])]))
    assert "Unknown" in text
    assert "AgentSilent" in text
    assert "no heartbeat since 9:00" in text
    assert "Starting" not in text


BORROWER = {"uuid": "GPU-0", "share": "inference", "namespace": "ml", "pod": "trainer", "container": "main",
            "reservedMib": 8192, "limitMib": 24576, "observedMib": 20000, "since": "2026-01-01T00:00:00Z",
            "endsAt": "2026-01-01T00:00:30Z"}  # fmt: skip
PRESSURE = {"type": "MemoryPressure", "status": "True", "reason": "MemoryShort", "message": "GPU GPU-0 has 1 MiB free",
            "lastTransitionTime": "2026-01-01T00:00:00Z"}  # fmt: skip


def test_status_shows_reservations_borrowers_and_shortages() -> None:
    lending = share(clients={"perGpu": 8, "memory": {"default": "8Gi", "limits": {"max": "24Gi"}}})
    daemon = {"uuid": "GPU-0", "share": "inference", "ready": True, "reason": "Ready", "desiredLimits": LIMITS}
    holder = {"uuid": "GPU-0", "share": "inference", "slots": [0, 1, 2], "reservedMib": 24576, "limitsMib": 73728}
    node = gpu_node("GPU-0", daemons=[daemon], holders=[holder], borrowers=[BORROWER], conditions=[PRESSURE])
    text = shown(status([lending], [node]))
    for part in (
        "RESERVED",
        "24Gi (17%)",
        "72Gi (51%)",
        "ml/trainer",
        "20000Mi",
        "2026-01-01T00:00:30Z",
        "MemoryShort",
    ):
        assert part in text
    plain = shown(status([share()], [gpu_node("GPU-0", daemons=[daemon], holders=[holder])]))
    assert "RESERVED" not in plain
    assert "BORROWER" not in plain
