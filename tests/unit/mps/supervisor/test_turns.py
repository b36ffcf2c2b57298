"""Turns over a real socket: what the server's limits are, and who may change them."""

import os
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare.mps.control import ControlCommands, ControlTimeoutError
from gpushare.mps.layout import GpuDir
from gpushare.mps.supervisor.turns import FOLLOW_SECONDS, SERIES_SECONDS, Terms, TurnServer
from gpushare.mps.wire import ClientGrant, DaemonLimits, TurnAnswer, decode, encode

SERVER = 4711
TERMS = Terms(SERVER, DaemonLimits(threads=50, memory_mib=8192))


class Commands(ControlCommands):
    """`limits`: of the server, after all commands so far. `changes`: every one of them."""

    def __init__(self) -> None:
        super().__init__(1.0)
        self.limits = "50 8192M"
        self.changes: list[str] = []
        self.status = "ACTIVE"
        self.fails = False

    def run(self, *commands: str, seconds: float | None = None) -> str:
        if self.fails:
            raise ControlTimeoutError("not answered")
        [command] = commands
        if command.startswith("get_server_status"):
            return self.status
        self.changes.append(command)
        value = command.split()[-1]
        threads, memory = self.limits.split()
        self.limits = f"{value} {memory}" if "thread" in command else f"{threads} {value}"
        return f"{value}.0" if "thread" in command else ""


class Stand:
    def __init__(self, path: Path) -> None:
        self.gpu = GpuDir(path / "GPU-0")
        self.gpu.path.mkdir()
        self.commands = Commands()
        self.terms: Terms | str = TERMS
        self.lock = threading.Lock()

    def serve(self, uid: int) -> TurnServer:
        server = TurnServer(self.gpu, self.commands, lambda: self.terms, self.lock, uid)
        server.start()
        return server

    def take(self, message: bytes) -> tuple[socket.socket, bytes]:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.settimeout(5)
        sock.connect(str(self.gpu.turns))
        sock.send(message)
        return sock, sock.recv(1024)

    def ask(self, threads: int, memory_mib: int) -> tuple[socket.socket, TurnAnswer]:
        grant = ClientGrant(threads=threads, memory_mib=memory_mib, processes=1)
        sock, answer = self.take(encode(grant))
        return sock, decode(answer, TurnAnswer)

    def until_free(self) -> None:
        assert self.lock.acquire(timeout=5)
        self.lock.release()


@pytest.fixture
def stand(tmp_path: Path) -> Iterator[Stand]:
    stand = Stand(tmp_path)
    server = stand.serve(os.geteuid())
    yield stand
    server.end()


def test_a_turn_has_the_grants_limits_until_the_broker_hangs_up(stand: Stand) -> None:
    sock, answer = stand.ask(10, 1024)
    assert (answer.server_pid, stand.commands.limits) == (SERVER, "10 1024M")
    assert stand.lock.locked(), "nobody reads or writes the limits meanwhile"
    sock.close()
    stand.until_free()
    assert stand.commands.limits == "50 8192M"


def test_turns_are_offered_again_in_a_directory_that_was_made_anew(tmp_path: Path) -> None:
    stand = Stand(tmp_path)
    server = stand.serve(os.geteuid())
    try:
        shutil.rmtree(stand.gpu.path)
        stand.gpu.path.mkdir()
        server.start()
        sock, answer = stand.ask(10, 1024)
        sock.close()
        assert answer.server_pid == SERVER
    finally:
        server.end()


def test_no_limit_of_a_server_in_fault_is_changed(stand: Stand) -> None:
    stand.commands.status = "FAULT"
    sock, answer = stand.ask(10, 1024)
    sock.close()
    stand.until_free()
    assert (answer.server_pid, stand.commands.changes) == (0, [])
    assert "FAULT" in answer.wait


def test_turns_come_one_after_the_other(stand: Stand) -> None:
    first, _ = stand.ask(10, 1024)
    second = threading.Thread(target=lambda: stand.ask(20, 2048)[0].close())
    second.start()
    assert stand.commands.limits == "10 1024M"
    first.close()
    second.join(5)
    stand.until_free()
    assert stand.commands.limits == "50 8192M"


def test_turns_in_a_row_change_only_what_differs(stand: Stand) -> None:
    """A process attaches for itself and for its context; then comes one of another size."""
    for threads, memory_mib in ((10, 1024), (10, 1024), (20, 1024)):
        stand.ask(threads, memory_mib)[0].close()
    stand.until_free()
    assert stand.commands.changes == [
        f"set_active_thread_percentage {SERVER} 10",
        f"set_device_pinned_mem_limit {SERVER} 0 1024M",
        f"set_active_thread_percentage {SERVER} 20",
        f"set_active_thread_percentage {SERVER} 50",
        f"set_device_pinned_mem_limit {SERVER} 0 8192M",
    ]


def test_a_grant_of_the_whole_share_keeps_the_lock_for_its_turn(stand: Stand) -> None:
    stand.ask(50, 8192)[0].close()
    assert stand.lock.acquire(timeout=FOLLOW_SECONDS / 2)
    stand.lock.release()
    assert stand.commands.changes == []


def test_a_reader_of_limits_finds_the_ceiling_between_turns(stand: Stand) -> None:
    stop = threading.Event()

    def attach_without_end() -> None:
        while not stop.is_set():
            stand.ask(10, 1024)[0].close()

    crowd = threading.Thread(target=attach_without_end)
    crowd.start()
    try:
        for _ in range(2):
            assert stand.lock.acquire(timeout=3 * SERIES_SECONDS)
            limits = stand.commands.limits
            stand.lock.release()
            assert limits == "50 8192M"
    finally:
        stop.set()
        crowd.join(5)


def test_a_ceiling_that_could_not_be_set_is_not_trusted(stand: Stand) -> None:
    stand.ask(10, 1024)[0].close()
    stand.commands.fails = True
    stand.until_free()
    stand.commands.fails = False
    stand.commands.limits = "50 8192M"  # by the supervisor's own observation
    sock, answer = stand.ask(10, 1024)
    assert (answer.server_pid, stand.commands.limits) == (SERVER, "10 1024M")
    sock.close()
    stand.until_free()
    assert stand.commands.limits == "50 8192M"


def test_the_limits_of_a_server_in_fault_are_left_alone(stand: Stand) -> None:
    """A change of these limits hangs the daemon."""
    stand.ask(10, 1024)[0].close()
    stand.commands.status = "FAULT"
    stand.until_free()
    assert len(stand.commands.changes) == 2


def test_no_turn_gives_more_than_the_share_does(stand: Stand) -> None:
    sock, _ = stand.ask(100, 1024)
    assert stand.commands.limits == "50 1024M"
    sock.close()


def test_while_the_daemon_is_not_ready_there_is_no_turn_and_it_says_why(stand: Stand) -> None:
    stand.terms = "Faulted: waits for its clients"
    sock, answer = stand.ask(10, 1024)
    assert (answer.server_pid, answer.wait) == (0, "Faulted: waits for its clients")
    assert stand.commands.limits == "50 8192M"
    sock.close()


def test_where_the_server_does_not_answer_there_is_no_turn(stand: Stand) -> None:
    stand.commands.fails = True
    sock, answer = stand.ask(10, 1024)
    assert (answer.server_pid, answer.wait) == (0, "not answered")
    sock.close()
    stand.commands.fails = False
    stand.until_free()
    sock, answer = stand.ask(10, 1024)
    assert answer.server_pid == SERVER
    sock.close()


def test_what_is_no_grant_gets_no_turn(stand: Stand) -> None:
    for message in (b"{}", b"not JSON", b'{"threads": 0, "memoryMib": 1, "processes": 1}'):
        sock, answer = stand.take(message)
        assert answer == b""
        sock.close()
    assert stand.commands.limits == "50 8192M"


def test_nobody_but_the_broker_gets_a_turn(tmp_path: Path) -> None:
    stand = Stand(tmp_path)
    server = stand.serve(os.geteuid() + 1)
    grant = ClientGrant(threads=10, memory_mib=1024, processes=1)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.settimeout(5)
    sock.connect(str(stand.gpu.turns))
    try:
        sock.send(encode(grant))
        answer = sock.recv(64)
    except (ConnectionResetError, BrokenPipeError):  # it hung up before it read the request
        answer = b""
    assert answer == b""
    assert stand.commands.limits == "50 8192M"
    server.end()
