"""Clients are terminated once each, also by another caller, after a lost answer, or by a restarted agent."""

import shutil
import stat
from pathlib import Path

import pytest

from gpushare.agent.process import processes
from gpushare.agent.process.processes import Process
from gpushare.agent.terminate.terminate import MAX_RECORDS, ClientTerminator, TerminationCause
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
        found = processes.read(pid, self.proc)
        assert found is not None
        return found


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_those_that_the_daemon_has_terminated_are_returned_in_the_order_asked_for(world: World) -> None:
    clients = [world.new_client(pid) for pid in (12, 10, 11)]
    assert await world.terminator.terminate(GPU, clients, TerminationCause.DEPARTURE) == (clients, "")
    assert world.ended == [12, 10, 11]


async def test_no_client_is_terminated_a_second_time_and_no_second_caller_gets_it_returned(world: World) -> None:
    client = world.new_client(10)
    assert not world.terminator.was_asked(GPU, client)
    await world.terminator.terminate(GPU, [client], TerminationCause.DEPARTURE)
    assert world.terminator.was_asked(GPU, client)
    assert await world.terminator.terminate(GPU, [client], TerminationCause.DEPARTURE) == ([], "")
    assert world.ended == [10]


async def test_a_restarted_agent_knows_which_clients_its_predecessor_asked_for(world: World) -> None:
    client = world.new_client(10)
    await world.terminator.terminate(GPU, [client], TerminationCause.DEPARTURE)
    successor = world.restarted_agent()
    assert successor.was_asked(GPU, client)
    assert await successor.terminate(GPU, [client], TerminationCause.DEPARTURE) == ([], "")
    assert world.ended == [10]


async def test_a_command_is_on_disk_before_it_is_sent(world: World) -> None:
    client = world.new_client(10)
    saved: list[bool] = []

    class Watching:
        def sound_servers(self) -> list[int]:
            return world.servers

        def terminate_client(self, server: int, pid: int) -> bool:
            saved.append(world.restarted_agent().was_asked(GPU, client))
            return True

    await ClientTerminator(world.root, lambda _: Watching(), world.proc).terminate(
        GPU, [client], TerminationCause.DEPARTURE
    )
    assert saved == [True]


async def test_a_lost_answer_counts_as_asked_for(world: World) -> None:
    world.answer_lost = True
    client = world.new_client(10)
    terminated, problem = await world.terminator.terminate(GPU, [client], TerminationCause.DEPARTURE)
    assert (terminated, problem) == ([], "no answer within 5 s")
    assert world.restarted_agent().was_asked(GPU, client)


async def test_a_refusal_and_a_missing_daemon_allow_another_try(world: World) -> None:
    client = world.new_client(10)
    world.refused = {10}
    assert (await world.terminator.terminate(GPU, [client], TerminationCause.DEPARTURE))[0] == []
    world.refused, world.absent = set(), True
    assert await world.terminator.terminate(GPU, [client], TerminationCause.DEPARTURE) == (
        [],
        "no MPS control daemon serves pipe",
    )
    world.absent = False
    assert await world.terminator.terminate(GPU, [client], TerminationCause.DEPARTURE) == ([client], "")


async def test_a_process_that_is_no_client_yet_may_be_asked_for_again_once_it_is(world: World) -> None:
    client = world.new_client(10)
    world.listed[GPU].remove(10)
    assert await world.terminator.terminate(GPU, [client], TerminationCause.DEPARTURE) == ([], "")
    world.new_client(10)
    assert await world.terminator.terminate(GPU, [client], TerminationCause.DEPARTURE) == ([client], "")


async def test_a_client_of_a_new_server_is_a_new_client(world: World) -> None:
    client = world.new_client(10)
    await world.terminator.terminate(GPU, [client], TerminationCause.DEPARTURE)
    world.new_server(600)
    assert not world.terminator.was_asked(GPU, client)
    assert await world.terminator.terminate(GPU, [client], TerminationCause.DEPARTURE) == ([client], "")


async def test_another_process_with_an_ended_ones_pid_is_another_client(world: World) -> None:
    await world.terminator.terminate(GPU, [world.new_client(10)], TerminationCause.DEPARTURE)
    successor = world.new_client(10, started=200)
    assert await world.terminator.terminate(GPU, [successor], TerminationCause.DEPARTURE) == ([successor], "")


async def test_a_pid_that_became_another_process_meanwhile_is_left_alone(world: World) -> None:
    client = world.new_client(10)
    world.new_client(10, started=200)
    assert await world.terminator.terminate(GPU, [client], TerminationCause.DEPARTURE) == ([], "")
    assert world.ended == []


async def test_ended_processes_are_remembered_as_long_as_there_is_room_and_records_are_bounded(world: World) -> None:
    file = world.root / GPU / "endings.json"
    await world.terminator.terminate(
        GPU, [world.new_client(pid) for pid in range(1000, 1003)], TerminationCause.DEPARTURE
    )
    shutil.rmtree(world.proc / "1000")
    await world.terminator.terminate(GPU, [world.new_client(2000)], TerminationCause.DEPARTURE)
    assert '"pid":1000' in file.read_text()
    await world.terminator.terminate(
        GPU, [world.new_client(pid) for pid in range(3000, 3000 + MAX_RECORDS - 3)], TerminationCause.DEPARTURE
    )
    assert file.read_text().count('"pid"') == MAX_RECORDS
    assert '"pid":1000' not in file.read_text()
    assert '"pid":1001' in file.read_text()
    await world.terminator.terminate(GPU, [world.new_client(4000)], TerminationCause.DEPARTURE)
    assert file.read_text().count('"pid"') == MAX_RECORDS
    assert '"pid":1001' not in file.read_text()


@pytest.mark.parametrize("written_by", ["this agent", "one that wrote it for itself alone"])
async def test_the_broker_who_is_another_user_can_read_whom_the_daemon_was_asked_to_end(
    world: World, written_by: str
) -> None:
    file = world.root / GPU / "endings.json"
    client = world.new_client(10)
    if written_by == "this agent":
        await world.terminator.terminate(GPU, [client], TerminationCause.DEPARTURE)
    else:
        write_model(file, TerminationFile())
        assert not world.terminator.was_asked(GPU, client)
    assert stat.S_IMODE(file.stat().st_mode) == 0o644


async def test_a_file_that_cannot_be_read_or_written_keeps_no_client_from_its_end(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    (world.root / GPU / "endings.json").write_text("{torn")
    client = world.new_client(10)
    assert await world.terminator.terminate(GPU, [client], TerminationCause.DEPARTURE) == ([client], "")
    assert "clients terminated earlier are not known" in caplog.text
    shutil.rmtree(world.root / GPU)
    later = world.new_client(11)
    assert await world.terminator.terminate(GPU, [later], TerminationCause.DEPARTURE) == ([later], "")
    assert "neither broker nor the next agent will know" in caplog.text
