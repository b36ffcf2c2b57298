"""The program of preStop hooks, as a container runs it: what it says, and its time, whatever the broker does."""

import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpushare.api.names import CLIENT_PIPE_DIR
from gpushare.mps.attach_protocol import CREDENTIALS, GREETING, Request, request_message
from localcluster.paths import REPOSITORY
from tests.native import build

pytestmark = pytest.mark.skipif(build.compiler() is None, reason="no C compiler")

SAID = [CREDENTIALS, request_message(Request.STOPPING)]
STARTING_SECONDS = 3.0
"""More than a busy machine needs to start and to end a program."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the program looks for its broker."""
    return tmp_path_factory.mktemp("b") / "control"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory, broker: Path) -> Path:
    return build.pre_stop(tmp_path_factory.mktemp("program"), broker)


def run(program: Path, *arguments: str) -> float:
    """Returns the seconds that it took; it always ends with 0."""
    began = time.monotonic()
    done = subprocess.run([program, *arguments], timeout=30, env={}, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    return time.monotonic() - began


@contextmanager
def listening(path: Path, serve: Callable[[socket.socket], None]) -> Iterator[None]:
    """`serve` is called with each connection, which is closed then."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen()

        def accept() -> None:
            while True:
                try:
                    sock, _ = listener.accept()
                except OSError:
                    return
                with sock:
                    serve(sock)

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(10)
            path.unlink()


def test_it_tells_the_broker_once_and_takes_its_time(program: Path, broker: Path) -> None:
    heard: list[list[bytes]] = []

    def serve(sock: socket.socket) -> None:
        sock.send(GREETING)
        heard.append([sock.recv(64), sock.recv(64)])

    with listening(broker, serve):
        assert 1.0 <= run(program, "1") < 1.0 + STARTING_SECONDS
    assert heard == [SAID]


@pytest.mark.parametrize(
    ("arguments", "seconds"),
    [
        pytest.param(["1"], 1.0, id="as it is told"),
        pytest.param(["0"], 0.0, id="none"),
        pytest.param([], 2.0, id="two, if it is told nothing"),
        pytest.param(["1 or so"], 2.0, id="two, if that is no number"),
    ],
)
def test_without_a_broker_it_takes_the_same_time(program: Path, arguments: list[str], seconds: float) -> None:
    assert seconds <= run(program, *arguments) < seconds + STARTING_SECONDS


def test_no_number_makes_it_take_longer_than_ten_seconds(program: Path) -> None:
    assert run(program, "99999999999999999999") < 10 + STARTING_SECONDS


def test_a_broker_that_says_nothing_holds_it_up_no_longer(program: Path, broker: Path) -> None:
    with listening(broker, lambda sock: sock.recv(64) and None):
        assert run(program, "1") < 1.0 + STARTING_SECONDS


def test_a_broker_that_hangs_up_is_asked_again(program: Path, broker: Path) -> None:
    heard: list[bytes] = []

    def serve(sock: socket.socket) -> None:
        heard.append(b"")
        if len(heard) > 2:
            sock.send(GREETING)
            heard.extend([sock.recv(64), sock.recv(64)])

    with listening(broker, serve):
        run(program, "1")
    assert heard[-2:] == SAID


def test_a_broker_that_comes_back_meanwhile_hears_of_it(program: Path, broker: Path) -> None:
    heard: list[bytes] = []
    running = subprocess.Popen([program, "5"], env={})

    def serve(sock: socket.socket) -> None:
        sock.send(GREETING)
        heard.extend([sock.recv(64), sock.recv(64)])

    time.sleep(0.2)  # a moment in which there is none
    with listening(broker, serve):
        assert running.wait(30) == 0
    assert heard == SAID


def test_it_needs_no_file_of_an_image(program: Path) -> None:
    """No interpreter, no library: a scratch image has none."""
    header = program.read_bytes()
    assert header[:4] == b"\x7fELF"
    assert b"ld-linux" not in header
    assert b".so" not in header


def test_it_looks_where_the_nodes_agent_mounts_the_brokers_directory() -> None:
    text = (REPOSITORY / "native/pre_stop.c").read_text()
    assert f'#define BROKER "{CLIENT_PIPE_DIR}/control"' in text
