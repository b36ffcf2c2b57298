"""The daemon's socket: commands over it, clients that stop in the midst of an attach, and the limits that bind them."""

import socket
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for

import pytest

from gpushare.mps.attach_protocol import CLIENT_SOCKET, CREDENTIALS, FAREWELL, GREETING, Request, request_message
from gpushare.mps.control import ControlError, NoDaemonError, RefusedError
from gpushare.mps.control_socket import ControlSocket
from tests.contract.conftest import SECONDS

SHORT = 1.5
"""Long enough for every answer that comes at all: they take a tenth of a millisecond."""
PATIENCE = 3 * SECONDS
"""The longest wait for the answer of a daemon that answers no more."""
THREADS = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"


@pytest.fixture
def control(machine):
    return ControlSocket(machine.pipe / "control", SHORT)


def client_socket(machine, answers=True):
    """A client's socket to the server, as the daemon passes it. `answers`: the client bids the daemon farewell."""
    daemon = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    daemon.settimeout(SECONDS)
    daemon.connect(str(machine.pipe / "control"))
    assert daemon.recv(64) == GREETING
    daemon.send(CREDENTIALS)
    daemon.send(request_message(Request.ATTACH))
    message, descriptors, _, _ = socket.recv_fds(daemon, 64, 1)
    assert (message, len(descriptors)) == (CLIENT_SOCKET, 1)
    if answers:
        daemon.send(FAREWELL)
    daemon.close()
    return socket.socket(fileno=descriptors[0])


@pytest.fixture
def asked(machine, server):
    """The server is asked for its status, with patience: who hangs up before the answer can hang the daemon."""
    patient = ControlSocket(machine.pipe / "control", PATIENCE)
    with ThreadPoolExecutor() as threads:
        yield lambda: threads.submit(patient.server_status, server)


def is_answered(question: Future[str], seconds: float = SECONDS) -> bool:
    return not wait_for([question], seconds).not_done and question.result() == "ACTIVE"


@pytest.fixture
def server(machine, control):
    return machine.server()


def test_commands_over_the_socket_are_answered_as_by_the_program(machine, control, server):
    assert control.server_list() == [server]
    assert control.server_status(server) == "ACTIVE"
    assert control.clients(server) == []
    clients = [machine.client() for _ in range(2)]
    assert sorted(control.clients(server)) == sorted(client.process.pid for client in clients)
    control.set_server_threads(server, 25)
    control.set_server_memory(server, 4096)
    assert control.server_limits(server) == (25, 4096)
    with pytest.raises(RefusedError):
        control.set_default_threads(10)


def test_without_a_daemon_the_socket_says_so(idle):
    with pytest.raises(NoDaemonError):
        ControlSocket(idle.pipe / "control", SHORT).server_list()


def test_a_client_is_bound_to_the_servers_limits_when_it_attaches(machine, control, server):
    control.set_server_threads(server, 10)
    early = machine.program(**{THREADS: "100"})
    created = early("create")
    control.set_server_threads(server, 100)
    assert created["sms"] == 12
    assert machine.program(**{THREADS: "100"})("create")["sms"] == machine.gpu.sms
    assert early("sync") == {}


def test_a_process_is_listed_from_its_first_context_on(machine, control, server):
    program = machine.program()
    assert program("init") == {}
    listed = lambda: (control.clients(server), control.survey(server)[1])  # noqa: E731 - asked for twice
    assert listed() == ([], {})
    assert "error" not in program("create")
    assert listed() == ([program.pid], {program.pid: 1})


def test_a_child_forked_after_cuinit_gets_error_3(machine, control, server):
    """As of a DataLoader by fork: it makes no connection."""
    program = machine.program()
    assert program("init") == {}
    assert program("fork") == {"child": 3}
    assert "error" not in program("create")
    assert control.clients(server) == [program.pid]


@pytest.mark.parametrize("word", [CREDENTIALS, b"x", b"\xff" * 512], ids=["greeting", "little", "much"])
def test_a_client_with_its_socket_stops_the_server_until_it_talks_and_ends(machine, asked, word):
    running = machine.client()
    with client_socket(machine) as silent:
        question = asked()
        assert not is_answered(question, SHORT)
        silent.send(word)
        assert not is_answered(question, SHORT)
        assert running("sync") == {}, "running clients go on"
    assert is_answered(question)
    assert "error" not in machine.program()("create")
    assert running("sync") == {}


@pytest.mark.parametrize("word", [b"\xff" * 512, b"x"], ids=["much", "little"])
def test_a_client_that_sends_something_else_and_goes_is_forgotten(machine, asked, word):
    with client_socket(machine) as strange:
        strange.send(word)
        strange.shutdown(socket.SHUT_RDWR)
    assert is_answered(asked())
    assert "error" not in machine.program()("create")


def test_a_client_whose_place_another_holder_of_its_socket_takes_is_lost(machine, asked):
    """A client died with its socket, and somebody kept a copy."""
    gone = client_socket(machine)
    kept = gone.dup()
    gone.close()
    question = asked()
    assert not is_answered(question, SHORT)
    with kept:
        kept.send(CREDENTIALS)
        assert not is_answered(question, SHORT)
    assert is_answered(question)
    assert is_answered(asked())


def test_a_silent_connection_stops_the_daemon_until_it_hangs_up(machine, asked):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as daemon:
        daemon.settimeout(SECONDS)
        daemon.connect(str(machine.pipe / "control"))
        assert daemon.recv(64) == GREETING
        question = asked()
        assert not is_answered(question, SHORT)
    assert is_answered(question)


def test_a_client_that_bids_no_farewell_stops_the_daemon_until_it_hangs_up(machine, asked):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as daemon:
        daemon.settimeout(SECONDS)
        daemon.connect(str(machine.pipe / "control"))
        daemon.recv(64)
        daemon.send(CREDENTIALS)
        daemon.send(request_message(Request.ATTACH))
        _, descriptors, _, _ = socket.recv_fds(daemon, 64, 1)
        with socket.socket(fileno=descriptors[0]) as passed:
            passed.send(CREDENTIALS)
            question = asked()
            assert not is_answered(question, SHORT)
    assert is_answered(question)


def test_a_client_that_closes_its_socket_without_a_word_hangs_the_server(machine, control, server):
    running = machine.client()
    client_socket(machine).close()
    for _ in range(2):
        with pytest.raises(ControlError):
            control.server_status(server)
    assert running("sync") == {}, "running clients go on"
