"""Clients are terminated once each, also by another caller, after a lost answer, or by a restarted agent."""

import logging
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from gpushare.agent.process import processes
from gpushare.agent.process.processes import Process
from gpushare.agent.terminate import terminate_client
from gpushare.agent.terminate.terminate_client import MAX_RECORDS, Attempt, ClientTerminator
from gpushare.mps.files import write_model
from gpushare.mps.terminations import TerminationFile
from tests.unit.agent.departing_pods import Node

GPU = "GPU-0"


class World(Node):
    """Clients stay listed once they are ended, as they do until their process ends."""

    def __init__(self, root: Path) -> None:
        super().__init__(root / "proc")
        self.proc.mkdir()
        self.root = root
        (root / GPU).mkdir()
        self.stays_listed = True
        self.servers = []
        self.new_server(500)
        self.terminator = self.restarted_agent()

    def restarted_agent(self) -> ClientTerminator:
        return ClientTerminator(self.root, self.control, self.proc)

    def new_server(self, pid: int) -> None:
        for old in self.servers:
            shutil.rmtree(self.proc / str(old))
        self.servers = [pid]
        self.process(pid, started=pid)

    def new_client(self, pid: int, started: int = 100) -> Process:
        self.client(pid, 1, started=started)
        process = processes.read(pid, self.proc)
        assert process is not None
        return process


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_terminated_clients_are_returned_in_the_order_asked_for(world: World) -> None:
    clients = [world.new_client(pid) for pid in (12, 10, 11)]
    assert world.terminator.terminate(GPU, clients) == Attempt(clients)
    assert world.ended == [12, 10, 11]


def test_no_client_is_terminated_or_returned_a_second_time(world: World) -> None:
    client = world.new_client(10)
    assert not world.terminator.was_asked(GPU, client)
    world.terminator.terminate(GPU, [client])
    assert world.terminator.was_asked(GPU, client)
    assert world.terminator.terminate(GPU, [client]) == Attempt([])
    assert world.ended == [10]


class OnceAtALogLine(logging.Handler):
    """Stands for a thread that comes between two steps of another."""

    def __init__(self, work: Callable[[], object]) -> None:
        super().__init__()
        self._left = [work]

    def emit(self, record: logging.LogRecord) -> None:
        if self._left:
            self._left.pop()()


def test_a_reader_of_the_file_forgets_nobody_another_thread_asked_for(world: World) -> None:
    client = world.new_client(10)
    (world.root / GPU / "endings.json").write_text("{")  # reading it leaves a line in the log
    between = OnceAtALogLine(lambda: world.terminator.terminate(GPU, [client]))
    terminate_client.LOG.addHandler(between)
    try:
        world.terminator.was_asked(GPU, client)
    finally:
        terminate_client.LOG.removeHandler(between)
    world.terminator.terminate(GPU, [client])
    assert world.ended == [10]


def test_a_restarted_agent_knows_which_clients_its_predecessor_asked_for(world: World) -> None:
    client = world.new_client(10)
    world.terminator.terminate(GPU, [client])
    successor = world.restarted_agent()
    assert successor.was_asked(GPU, client)
    assert successor.terminate(GPU, [client]) == Attempt([])
    assert world.ended == [10]


def test_a_command_is_on_disk_before_it_is_sent(world: World) -> None:
    client = world.new_client(10)
    saved: list[bool] = []

    class Watching:
        def sound_servers(self) -> list[int]:
            return world.servers

        def terminate_client(self, server: int, pid: int) -> bool:
            saved.append(world.restarted_agent().was_asked(GPU, client))
            return True

    ClientTerminator(world.root, lambda _: Watching(), world.proc).terminate(GPU, [client])
    assert saved == [True]


def test_a_lost_answer_counts_as_asked_for(world: World) -> None:
    world.answer_lost = True
    client = world.new_client(10)
    assert world.terminator.terminate(GPU, [client]) == Attempt([], "no answer within 5 s")
    assert world.restarted_agent().was_asked(GPU, client)


def test_a_refusal_and_a_missing_daemon_allow_another_try(world: World) -> None:
    client = world.new_client(10)
    world.refused = {10}
    assert list(world.terminator.terminate(GPU, [client]).terminated) == []
    world.refused, world.absent = set(), True
    assert world.terminator.terminate(GPU, [client]) == Attempt([], "no MPS control daemon serves pipe")
    world.absent = False
    assert world.terminator.terminate(GPU, [client]) == Attempt([client])


def test_a_process_that_is_no_client_yet_may_be_asked_for_again_once_it_is(world: World) -> None:
    client = world.new_client(10)
    world.listed[GPU].remove(10)
    assert world.terminator.terminate(GPU, [client]) == Attempt([])
    world.new_client(10)
    assert world.terminator.terminate(GPU, [client]) == Attempt([client])


def test_a_client_of_a_new_server_is_a_new_client(world: World) -> None:
    client = world.new_client(10)
    world.terminator.terminate(GPU, [client])
    world.new_server(600)
    assert not world.terminator.was_asked(GPU, client)
    assert world.terminator.terminate(GPU, [client]) == Attempt([client])


def test_another_process_with_an_ended_ones_pid_is_another_client(world: World) -> None:
    world.terminator.terminate(GPU, [world.new_client(10)])
    successor = world.new_client(10, started=200)
    assert world.terminator.terminate(GPU, [successor]) == Attempt([successor])


def test_clients_are_left_untried_once_something_is_more_urgent(world: World) -> None:
    clients = [world.new_client(pid) for pid in (10, 11, 12)]
    attempt = world.terminator.terminate(GPU, clients, lambda: bool(world.ended))
    assert attempt == Attempt(clients[:1], "", clients[1:])
    assert world.ended == [10]


def test_a_pid_that_became_another_process_meanwhile_is_left_alone(world: World) -> None:
    client = world.new_client(10)
    world.new_client(10, started=200)
    assert world.terminator.terminate(GPU, [client]) == Attempt([])
    assert world.ended == []


def test_records_are_bounded_and_keep_ended_processes_while_there_is_room(world: World) -> None:
    file = world.root / GPU / "endings.json"
    world.terminator.terminate(GPU, [world.new_client(pid) for pid in range(1000, 1003)])
    shutil.rmtree(world.proc / "1000")
    world.terminator.terminate(GPU, [world.new_client(2000)])
    assert '"pid":1000' in file.read_text()
    world.terminator.terminate(GPU, [world.new_client(pid) for pid in range(3000, 3000 + MAX_RECORDS - 3)])
    assert file.read_text().count('"pid"') == MAX_RECORDS
    assert '"pid":1000' not in file.read_text()
    assert '"pid":1001' in file.read_text()
    world.terminator.terminate(GPU, [world.new_client(4000)])
    assert file.read_text().count('"pid"') == MAX_RECORDS
    assert '"pid":1001' not in file.read_text()


@pytest.mark.parametrize("written_by", ["this agent", "one that wrote it for itself alone"])
def test_the_broker_which_is_another_user_can_read_the_records(world: World, written_by: str) -> None:
    file = world.root / GPU / "endings.json"
    client = world.new_client(10)
    if written_by == "this agent":
        world.terminator.terminate(GPU, [client])
    else:
        write_model(file, TerminationFile())
        assert not world.terminator.was_asked(GPU, client)
    assert stat.S_IMODE(file.stat().st_mode) == 0o644


def test_an_unreadable_file_keeps_no_client_from_its_end(world: World, caplog: pytest.LogCaptureFixture) -> None:
    (world.root / GPU / "endings.json").write_text("{torn")
    client = world.new_client(10)
    assert world.terminator.terminate(GPU, [client]) == Attempt([client])
    assert "clients terminated earlier are not known" in caplog.text
    shutil.rmtree(world.root / GPU)
    later = world.new_client(11)
    assert world.terminator.terminate(GPU, [later]) == Attempt([later])
    assert "neither broker nor the next agent will know" in caplog.text
