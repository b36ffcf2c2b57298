"""What a later release may write, read by this one: what it does not know hides nothing of what it knows."""

import json
from pathlib import Path
from typing import Any

import pytest

from gpushare.agent.attach.refusals import RefusalReports
from gpushare.api.conditions import DaemonReason
from gpushare.kube.client import GPU_NODES
from gpushare.mps.files import read_model
from gpushare.mps.wire import BrokerState, DaemonState, RefusedAttach
from tests.unit.agent.fake_node import FakeNode

STATE: dict[str, Any] = {
    "version": 1,
    "uuid": "GPU-0",
    "share": "a",
    "heartbeat": 5.0,
    "reason": "OutOfPaint",
    "message": "no blue left",
    "serverPid": 1000,
    "contexts": 3,
}
REFUSAL: dict[str, Any] = {
    "reason": "TooBlue",
    "podUid": "u",
    "container": "app",
    "message": "it is blue",
    "count": 2,
    "at": 7.0,
}
BROKER: dict[str, Any] = {"version": 1, "uuid": "GPU-0", "heartbeat": 5.0, "listening": True, "refusals": [REFUSAL]}


def read(tmp_path: Path, content: dict[str, Any], model: Any) -> Any:
    path = tmp_path / "file.json"
    path.write_text(json.dumps(content))
    answer = read_model(path, model)
    assert answer.value is not None, answer.reason
    return answer.value


def test_a_reason_of_a_later_supervisor_is_told_in_its_words(tmp_path: Path) -> None:
    state = read(tmp_path, STATE, DaemonState)
    assert (state.reason, state.message) == (DaemonReason.UNKNOWN, "OutOfPaint: no blue left")
    assert (state.server_pid, state.contexts, state.ready) == (1000, 3, False)


def test_a_long_message_of_a_reason_that_is_not_known_is_cut(tmp_path: Path) -> None:
    state = read(tmp_path, STATE | {"message": "x" * 1024}, DaemonState)
    assert len(state.message) == 1024
    refusals = read(tmp_path, BROKER | {"refusals": [REFUSAL | {"message": "x" * 512}]}, BrokerState).refusals
    assert len(refusals[0].message) == 512


def test_a_refusal_of_a_later_broker_is_an_event(tmp_path: Path) -> None:
    broker = read(tmp_path, BROKER, BrokerState)
    assert broker.listening
    assert broker.refusals[0].reason is RefusedAttach.OTHER
    (new,) = RefusalReports("n", started=0.0).update(broker, "a", {})
    (event,) = new.events
    assert "TooBlue: it is blue" in event.note


@pytest.mark.parametrize("reason", [None, 7, ["Ready"]])
def test_what_is_no_reason_at_all_makes_the_file_invalid_as_before(tmp_path: Path, reason: Any) -> None:
    path = tmp_path / "state.json"
    path.write_text(json.dumps(STATE | {"reason": reason}))
    assert read_model(path, DaemonState).value is None


async def test_an_unreadable_status_is_written_anew(node: FakeNode) -> None:
    """The case is a downgrade: the status is what the later agent wrote."""
    await node.serving()
    stored = node.kube.live(GPU_NODES, "n")
    gpus = [gpu | {"computeMode": "ExclusiveThread"} for gpu in stored["status"]["gpus"]]
    node.kube.put(GPU_NODES, stored | {"status": stored["status"] | {"gpus": gpus}})
    await node.until(lambda: {gpu["computeMode"] for gpu in node.status()["gpus"]} == {"ExclusiveProcess", "Default"})
    node.kube.assign({"uuid": "GPU-1", "share": "a"})
    await node.until(
        lambda: [daemon["uuid"] for daemon in node.status()["daemons"] if daemon["ready"]] == ["GPU-1"], 12
    )


async def test_unreadable_assignments_change_nothing(node: FakeNode) -> None:
    await node.serving()
    stored = node.kube.live(GPU_NODES, "n")
    observed = node.status()["observedGeneration"]
    node.kube.put(
        GPU_NODES, stored | {"spec": {"assignments": [{"uuid": "GPU-0", "share": "a", "draining": "halfway"}]}}
    )
    node.nvml.servers["GPU-0"] = 4711
    await node.until(lambda: node.daemon()["reason"] == "ServerContextLost")
    assert node.status()["observedGeneration"] == observed, "it has observed what it could not read"
    decisions = node.latest.decisions
    assert decisions is not None
    assert [item.uuid for item in decisions.given.assignments or ()] == ["GPU-0"]
    node.nvml.servers["GPU-0"] = 1000
    await node.until(lambda: len(node.kubelet.ids()) == 4, 12)
