"""Ending clients in order: once each, whoever asks, whatever became of the answer, and across restarts of the agent."""

import shutil
from pathlib import Path

import pytest

from gpushare.agent.process import processes
from gpushare.agent.process.processes import Process
from gpushare.agent.termination.terminate import MOST_REMEMBERED, ClientTerminator, TerminationCause
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
        self.endings = self.restarted_agent()

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


async def test_those_that_the_daemon_has_ended_are_returned_in_the_order_asked_for(world: World) -> None:
    clients = [world.new_client(pid) for pid in (12, 10, 11)]
    assert await world.endings.end(GPU, clients, TerminationCause.DEPARTURE) == (clients, "")
    assert world.ended == [12, 10, 11]


async def test_nobody_is_asked_for_a_second_time_and_no_second_caller_hears_of_an_end(world: World) -> None:
    client = world.new_client(10)
    assert not world.endings.asked(GPU, client)
    await world.endings.end(GPU, [client], TerminationCause.DEPARTURE)
    assert world.endings.asked(GPU, client)
    assert await world.endings.end(GPU, [client], TerminationCause.DEPARTURE) == ([], "")
    assert world.ended == [10]


async def test_a_restarted_agent_knows_whom_its_predecessor_asked_for(world: World) -> None:
    client = world.new_client(10)
    await world.endings.end(GPU, [client], TerminationCause.DEPARTURE)
    successor = world.restarted_agent()
    assert successor.asked(GPU, client)
    assert await successor.end(GPU, [client], TerminationCause.DEPARTURE) == ([], "")
    assert world.ended == [10]


async def test_it_is_on_disk_before_the_command_is_sent(world: World) -> None:
    client = world.new_client(10)
    noted: list[bool] = []

    class Watching:
        def sound_servers(self) -> list[int]:
            return world.servers

        def terminate_client(self, server: int, pid: int) -> bool:
            noted.append(world.restarted_agent().asked(GPU, client))
            return True

    await ClientTerminator(world.root, lambda _: Watching(), world.proc).end(GPU, [client], TerminationCause.DEPARTURE)
    assert noted == [True]


async def test_a_lost_answer_counts_as_asked_for(world: World) -> None:
    world.answer_lost = True
    client = world.new_client(10)
    ended, trouble = await world.endings.end(GPU, [client], TerminationCause.DEPARTURE)
    assert (ended, trouble) == ([], "no answer within 5 s")
    assert world.restarted_agent().asked(GPU, client)


async def test_a_refusal_and_a_missing_daemon_allow_another_try(world: World) -> None:
    client = world.new_client(10)
    world.refused = {10}
    assert (await world.endings.end(GPU, [client], TerminationCause.DEPARTURE))[0] == []
    world.refused, world.absent = set(), True
    assert await world.endings.end(GPU, [client], TerminationCause.DEPARTURE) == (
        [],
        "no MPS control daemon serves pipe",
    )
    world.absent = False
    assert await world.endings.end(GPU, [client], TerminationCause.DEPARTURE) == ([client], "")


async def test_a_process_that_is_no_client_yet_may_be_asked_for_again_once_it_is(world: World) -> None:
    client = world.new_client(10)
    world.listed[GPU].remove(10)
    assert await world.endings.end(GPU, [client], TerminationCause.DEPARTURE) == ([], "")
    world.new_client(10)
    assert await world.endings.end(GPU, [client], TerminationCause.DEPARTURE) == ([client], "")


async def test_a_client_of_a_new_server_is_a_new_client(world: World) -> None:
    client = world.new_client(10)
    await world.endings.end(GPU, [client], TerminationCause.DEPARTURE)
    world.new_server(600)
    assert not world.endings.asked(GPU, client)
    assert await world.endings.end(GPU, [client], TerminationCause.DEPARTURE) == ([client], "")


async def test_another_process_with_an_ended_ones_pid_is_another_client(world: World) -> None:
    await world.endings.end(GPU, [world.new_client(10)], TerminationCause.DEPARTURE)
    successor = world.new_client(10, started=200)
    assert await world.endings.end(GPU, [successor], TerminationCause.DEPARTURE) == ([successor], "")


async def test_a_pid_that_became_another_process_meanwhile_is_left_alone(world: World) -> None:
    client = world.new_client(10)
    world.new_client(10, started=200)
    assert await world.endings.end(GPU, [client], TerminationCause.DEPARTURE) == ([], "")
    assert world.ended == []


async def test_the_dead_are_remembered_as_long_as_there_is_room_and_the_living_are_bounded(world: World) -> None:
    file = world.root / GPU / "endings.json"
    await world.endings.end(GPU, [world.new_client(pid) for pid in range(1000, 1003)], TerminationCause.DEPARTURE)
    shutil.rmtree(world.proc / "1000")
    await world.endings.end(GPU, [world.new_client(2000)], TerminationCause.DEPARTURE)
    assert '"pid":1000' in file.read_text()
    await world.endings.end(
        GPU, [world.new_client(pid) for pid in range(3000, 3000 + MOST_REMEMBERED - 3)], TerminationCause.DEPARTURE
    )
    assert file.read_text().count('"pid"') == MOST_REMEMBERED
    assert '"pid":1000' not in file.read_text()
    assert '"pid":1001' in file.read_text()
    await world.endings.end(GPU, [world.new_client(4000)], TerminationCause.DEPARTURE)
    assert file.read_text().count('"pid"') == MOST_REMEMBERED
    assert '"pid":1001' not in file.read_text()


async def test_a_file_that_cannot_be_read_or_written_keeps_no_client_from_its_end(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    (world.root / GPU / "endings.json").write_text("{torn")
    client = world.new_client(10)
    assert await world.endings.end(GPU, [client], TerminationCause.DEPARTURE) == ([client], "")
    assert "clients ended earlier are not known" in caplog.text
    shutil.rmtree(world.root / GPU)
    later = world.new_client(11)
    assert await world.endings.end(GPU, [later], TerminationCause.DEPARTURE) == ([later], "")
    assert "could not be noted" in caplog.text
