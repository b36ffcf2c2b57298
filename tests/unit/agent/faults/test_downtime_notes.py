"""What passes from one agent to the next: seen.json, and clients that ended in between without being terminated."""

import shutil
from pathlib import Path

import pytest

from gpushare.agent.faults.downtime import NOTE_SECONDS, Handover, LastSeen, SeenClient
from gpushare.agent.observe.usage import ListedProcess, Reading, Usage
from gpushare.agent.process import processes
from gpushare.agent.terminate.terminate_client import ClientTerminator
from gpushare.api.conditions import DaemonReason
from gpushare.mps.wire import DaemonState
from tests.unit.agent.departing_pods import Node, uid

GPU = "GPU-0"
STATE = DaemonState(uuid=GPU, share="inference", heartbeat=0.0, reason=DaemonReason.READY, faults=1)


def reading(*numbers: int, mps: bool = True, terminated: bool = False) -> Reading:
    """One client of each pod, with PID 100 + its number."""
    return Reading(GPU, "inference", 0.0, 1000, tuple(_usage(number, mps, terminated) for number in numbers))


def _usage(number: int, mps: bool, terminated: bool) -> Usage:
    listed = (ListedProcess(100 + number, 7, 10, mps, terminated=terminated),)
    pod = (uid(number), "team", f"pod-{number}")
    return Usage(GPU, "inference", *pod, "app", "", listed, slot=True, grant=None, by_default=False, taken_at=0.0)


def client(number: int) -> SeenClient:
    return SeenClient(pid=100 + number, started=7, pod_uid=uid(number), namespace="team", pod=f"pod-{number}")


@pytest.fixture
def node(tmp_path: Path) -> Node:
    (tmp_path / GPU).mkdir()
    node = Node(tmp_path / "proc")
    node.proc.mkdir()
    return node


def restarted(node: Node) -> Handover:
    return Handover(node.proc.parent, node.proc)


def test_a_successor_takes_the_last_note_once(node: Node) -> None:
    first = restarted(node)
    assert first.take(GPU) is None
    first.save(GPU, STATE, reading(1), at=10.0)
    first.save(GPU, STATE, reading(1, 2), at=11.0)
    second = restarted(node)
    assert second.take(GPU) == LastSeen(at=11.0, faults=1, clients=(client(1), client(2)))
    assert second.take(GPU) is None


def test_the_note_about_a_gpu_is_gone_once_the_gpu_is_released(node: Node) -> None:
    restarted(node).save(GPU, STATE, reading(1), at=10.0)
    second = restarted(node)
    (node.proc.parent / GPU / "seen.json").unlink()
    assert second.take(GPU) is None


def test_while_nothing_changes_a_note_is_written_every_few_seconds(node: Node) -> None:
    handover = restarted(node)
    for at, noted in ((10.0, 10.0), (10.0 + NOTE_SECONDS / 2, 10.0), (10.0 + NOTE_SECONDS, 10.0 + NOTE_SECONDS)):
        handover.save(GPU, STATE, reading(1), at)
        left = restarted(node).take(GPU)
        assert left is not None
        assert left.at == noted


def test_while_the_clients_are_not_known_those_known_last_stay(node: Node) -> None:
    handover = restarted(node)
    handover.save(GPU, STATE, reading(1), at=10.0)
    handover.save(GPU, STATE, None, at=30.0)
    assert restarted(node).take(GPU) == LastSeen(at=30.0, faults=1, clients=(client(1),))
    early = restarted(node)
    early.save(GPU, STATE, None, at=40.0)
    assert restarted(node).take(GPU) == LastSeen(at=30.0, faults=1, clients=(client(1),)), "an earlier agent knew more"


@pytest.mark.parametrize(
    "harmless", [reading(1, terminated=True), reading(1, mps=False)], ids=["ended in order", "past MPS"]
)
def test_processes_that_can_harm_no_neighbour_are_not_noted(node: Node, harmless: Reading) -> None:
    restarted(node).save(GPU, STATE, harmless, at=10.0)
    left = restarted(node).take(GPU)
    assert left is not None
    assert left.clients == ()


def test_which_clients_ended_without_being_terminated(node: Node) -> None:
    for number in (1, 2, 3):
        node.client(100 + number, number, started=7)
    asked = processes.read(102, node.proc)
    assert asked is not None
    ClientTerminator(node.proc.parent, node.control, node.proc).terminate(GPU, [asked])
    for pid in (101, 102):
        shutil.rmtree(node.proc / str(pid))
    node.client(103, 3, started=99)
    node.client(104, 4, started=7)
    clients = tuple(client(number) for number in (1, 2, 3, 4))
    assert restarted(node).ended(GPU, clients) == [client(1), client(3)]


def test_a_torn_note_and_a_full_disk_are_logged_and_stop_nothing(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    file = node.proc.parent / GPU / "seen.json"
    file.write_text("{torn")
    handover = restarted(node)
    assert handover.take(GPU) is None
    assert "what happened while no agent ran is not known" in caplog.text
    shutil.rmtree(file.parent)
    handover.save(GPU, STATE, reading(1), at=10.0)
    assert "could not be saved for the next agent" in caplog.text
