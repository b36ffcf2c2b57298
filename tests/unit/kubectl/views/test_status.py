"""`kubectl gpushare status`: shares, GPUs and their problems."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpushare.api.gpunode import GpuNode
from gpushare.api.gpushare import GpuShare
from gpushare.kubectl.views.status import LAYOUTS, status
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


NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def lease(name: str, seconds: float) -> dict[str, Any]:
    """A Lease that the API server stored last so many seconds before NOW, by a writer whose clock is wrong."""
    stored = (NOW - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "metadata": {"name": name, "managedFields": [{"time": "2026-01-01T00:00:00Z"}, {"time": stored}]},
        "spec": {"renewTime": "2020-01-01T00:00:00.000000Z"},
    }


def serving(**more: Any) -> GpuNode:
    daemon = {"uuid": "GPU-0", "share": "inference", "ready": True, "reason": "Ready", "desiredLimits": LIMITS}
    holder = {"uuid": "GPU-0", "share": "inference", "slots": [0, 1, 2]}
    return gpu_node("GPU-0", daemons=[daemon], holders=[holder], **more)


def told(ready: str = "True", reason: str = "Ready", message: str = "", **more: Any) -> GpuShare:
    condition = {"type": "Ready", "status": ready, "reason": reason, "message": message,
                 "lastTransitionTime": "2026-01-01T00:00:00Z"}  # fmt: skip
    return GpuShare.model_validate(share().wire() | {"status": {"conditions": [condition]} | more})


def rows(text: str, of: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.startswith(of)]


def test_a_share_holds_what_its_gpus_hold_whatever_its_status_says() -> None:
    report = status([told(slots={"total": 8, "used": 14})], [serving()])
    assert rows(shown(report), "inference")[0][2:4] == ["3", "8"]
    assert rows(shown(report), "n1")[0][-1] == "3"
    assert report.code == 0


@pytest.mark.parametrize(
    ("leases", "silent"),
    [
        ([], ""),
        ([lease("n1", 500)], ""),
        ([lease("gpushare-operator", 5), lease("n1", 500)], ""),
        ([lease("gpushare-operator", 500)], "operator"),
        ([lease("gpushare-operator", 500), lease("n1", 5)], "operator"),
        ([lease("gpushare-operator", 500), lease("n1", 500)], "operator and agent"),
    ],
)
def test_status_without_an_operator_is_a_problem_and_no_share_is_ready(
    leases: list[dict[str, Any]], silent: str
) -> None:
    report = status([told()], [serving()], leases, NOW)
    text = shown(report)
    assert report.code == (1 if silent else 0)
    assert ("Unknown" in rows(text, "inference")[0]) is bool(silent)
    assert ("no Lease for 8m20s, since 2026-01-01T11:51:40Z" in text) is bool(silent)
    assert ("no heartbeat for 8m20s" in text) is ("agent" in silent)
    assert report.data["shares"][0]["status"]["conditions"][0]["status"] == "True", "data is what the API has"


@pytest.mark.parametrize("reason", [*LAYOUTS, "ForeignComputeMode", "GpuLost"])
def test_a_wanted_layout_is_no_problem_of_a_share(reason: str) -> None:
    report = status([told(unavailable=[{"reason": reason, "count": 2, "message": "why"}])], [serving()])
    assert report.code == (0 if reason in LAYOUTS else 1)
    assert [item["reason"] for item in report.data["problems"]] == ([] if reason in LAYOUTS else [reason])


def test_a_problem_is_listed_once_with_where_it_is() -> None:
    said = "the control daemon does not answer"
    daemon = {"uuid": "GPU-0", "share": "inference", "reason": "ControlTimeout", "message": said,
              "desiredLimits": LIMITS}  # fmt: skip
    unready = told(
        "False", "DaemonNotReady", f"1 of 1 MPS daemon not ready; GPU GPU-0 of node n1: ControlTimeout: {said}"
    )
    text = shown(status([unready], [gpu_node("GPU-0", daemons=[daemon])]))
    assert text.count(said) == 1
    assert "GPU GPU-0 of node n1: ControlTimeout: see node/n1" in text
    mode = {"reason": "ForeignComputeMode", "count": 2, "message": "GPU-0 is in compute mode Prohibited"}
    refused = told("False", "GpusUnavailable", f"2 ForeignComputeMode: {mode['message']}", unavailable=[mode])
    assert shown(status([refused], [gpu_node("GPU-0")])).count("compute mode Prohibited") == 1


def test_a_gpu_that_leaves_its_share_is_draining() -> None:
    for assignments, state in (
        ([{"uuid": "GPU-0", "share": "inference"}], "Ready"),
        ([{"uuid": "GPU-0", "share": "inference", "draining": True}], "Draining"),
        ([], "Draining"),
        (None, "Ready"),
    ):
        node = GpuNode.model_validate(serving().wire() | {"spec": {"assignments": assignments}})
        assert rows(shown(status([told()], [node])), "n1")[0][-2] == state
