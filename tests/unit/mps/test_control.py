"""ControlProgram against a stand-in executable: answers, time limits and refusals."""

import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.mps.attach_protocol import GREETING
from gpushare.mps.control import (
    ControlError,
    ControlProgram,
    ControlTimeoutError,
    NoDaemonError,
    RefusedError,
    shown_mib,
)
from gpushare.mps.control_socket import ControlSocket


class Program:
    """An executable that keeps its input, and answers with `body`."""

    def __init__(self, directory: Path, body: str, seconds: float = 5.0) -> None:
        self._asked = directory / "asked"
        program = directory / "nvidia-cuda-mps-control"
        program.write_text(f"#!/bin/bash\ncat >> {self._asked}\n{body}\n")
        program.chmod(0o755)
        self.control = ControlProgram(directory, directory / "pipe", directory / "log", seconds)

    @property
    def asked(self) -> list[str]:
        return self._asked.read_text().splitlines()


def answering(directory: Path, text: str) -> Program:
    return Program(directory, f"cat <<'END'\n{text}\nEND" if text else "")


@pytest.mark.parametrize(
    ("call", "command", "answer", "value"),
    [
        (lambda c: c.server_list(), "get_server_list", "501\n630", [501, 630]),
        (lambda c: c.server_list(), "get_server_list", "", []),
        (lambda c: c.server_status(501), "get_server_status 501", "ACTIVE", "ACTIVE"),
        (lambda c: c.clients(501), "get_client_list 501", "590\n591", [590, 591]),
        (lambda c: c.clients(501), "get_client_list 501", "", []),
        (lambda c: c.default_threads(), "get_default_active_thread_percentage", "100.0", 100.0),
        (lambda c: c.server_threads(501), "get_active_thread_percentage 501", "12.5", 12.5),
        (lambda c: c.default_memory_mib(), "get_default_device_pinned_mem_limit 0", "16G", 16384),
        (lambda c: c.default_memory_mib(), "get_default_device_pinned_mem_limit 0", "1023M", 1023),
        (lambda c: c.default_memory_mib(), "get_default_device_pinned_mem_limit 0", "", None),
        (lambda c: c.server_memory_mib(501), "get_device_pinned_mem_limit 501 0", "1G", 1024),
        (lambda c: c.set_default_threads(50), "set_default_active_thread_percentage 50", "50.0", None),
        (lambda c: c.set_server_threads(501, 40), "set_active_thread_percentage 501 40", "40.0", None),
        (lambda c: c.set_default_memory(16385), "set_default_device_pinned_mem_limit 0 16385M", "", None),
        (lambda c: c.set_server_memory(501, 512), "set_device_pinned_mem_limit 501 0 512M", "", None),
        (lambda c: c.start_server(), "start_server -uid 0", "", None),
        (lambda c: c.terminate_client(501, 590), "terminate_client 501 590", "0", True),
        (lambda c: c.terminate_client(501, 1), "terminate_client 501 1", "Invalid process 1!\n1", False),
        (lambda c: c.terminate_client(501, 7), "terminate_client 501 7", "201", False),
        (
            lambda c: c.terminate_client(9, 1),
            "terminate_client 9 1",
            "Server 9 not found\nServer 9 not found!\n1",
            False,
        ),
        (lambda c: c.quit(), "quit", "", None),
        (lambda c: c.quit(3), "quit -t 3", "", None),
    ],
)
def test_a_call_sends_one_command_and_reads_the_measured_answer(
    tmp_path: Path, call: Callable[[ControlProgram], object], command: str, answer: str, value: object
) -> None:
    program = answering(tmp_path, answer)
    assert call(program.control) == value
    assert program.asked == [command]


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        (lambda c: c.set_default_threads(50), "100.0"),
        (lambda c: c.set_server_threads(9, 50), "Server 9 not found"),
        (lambda c: c.set_default_memory(512), "Insufficient privileges for UID 0. …"),
        (lambda c: c.start_server(), "Insufficient privileges for UID 0. …"),
        (lambda c: c.quit(), "Not enough privilege to execute quit command"),
        (lambda c: c.default_threads(), 'Unknown command "get_default_active_thread_percentage"'),
        (lambda c: c.default_memory_mib(), "lots"),
        (lambda c: c.server_list(), 'Unknown command "get_server_list"'),
        (lambda c: c.clients(9), "Server 9 not found"),
        (lambda c: c.server_status(9), "Server 9 not found"),
        (lambda c: c.terminate_client(9, 1), "Insufficient privileges for UID 0. …"),
        (lambda c: c.server_limits(9), "Server 9 not found\nServer 9 not found"),
        (lambda c: c.server_threads(9), "nan"),
        (lambda c: c.default_threads(), "inf"),
        (lambda c: c.server_list(), "9" * 5000),
        (lambda c: c.clients(9), "590\n" + "9" * 5000),
        (lambda c: c.default_memory_mib(), "9" * 5000 + "M"),
        (lambda c: c.default_threads(), "100,0 %"),
        (lambda c: c.server_status(9), "le serveur 9 est introuvable"),
        (lambda c: c.terminate_client(9, 1), "processus 1 non valable"),
    ],
)
def test_an_answer_that_no_success_gives_is_a_refusal_that_quotes_it(
    tmp_path: Path, call: Callable[[ControlProgram], object], answer: str
) -> None:
    with pytest.raises(RefusedError) as refused:
        call(answering(tmp_path, answer).control)
    assert refused.value.text
    assert refused.value.text in answer


def test_an_answer_in_pieces_is_read_to_its_end(tmp_path: Path) -> None:
    program = Program(tmp_path, "printf 5; sleep 0.1; printf '01\\n63'; sleep 0.1; echo 0")
    assert program.control.server_list() == [501, 630]


def test_an_answer_without_an_end_is_given_up(tmp_path: Path) -> None:
    program = Program(tmp_path, f"echo $$ > {tmp_path}/pid; exec yes 501", seconds=60.0)
    with pytest.raises(RefusedError, match="more than 262144 bytes: 501"):
        program.control.server_list()
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists(), "it goes on"


def test_a_program_that_ends_without_reading_its_commands_has_answered(tmp_path: Path) -> None:
    program = Program(tmp_path, "")
    (tmp_path / "nvidia-cuda-mps-control").write_text("#!/bin/bash\nexec <&-; echo ACTIVE\n")
    assert program.control.server_status(501) == "ACTIVE"


def test_a_socket_that_never_ends_its_answer_is_given_up(tmp_path: Path) -> None:
    path = tmp_path / "control"

    def flood(listener: socket.socket) -> None:
        sock, _ = listener.accept()
        with sock, suppress(OSError):
            sock.send(GREETING)
            while True:
                sock.send(bytes(4) + b"501\n\0")

    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen()
        thread = threading.Thread(target=flood, args=(listener,), daemon=True)
        thread.start()
        with pytest.raises(RefusedError, match="more than 64 messages"):
            ControlSocket(path, seconds=60.0).server_list()
        thread.join(30)
    assert not thread.is_alive()


def test_without_a_daemon_every_call_raises(tmp_path: Path) -> None:
    program = Program(tmp_path, "echo 'Cannot find MPS control daemon process'; exit 1")
    with pytest.raises(NoDaemonError, match="pipe"):
        program.control.server_list()


def test_a_missing_program_is_named_by_its_path(tmp_path: Path) -> None:
    with pytest.raises(ControlError, match=f"{tmp_path}/nvidia-cuda-mps-control cannot be started"):
        ControlProgram(tmp_path, tmp_path, tmp_path).server_list()


def test_a_call_that_hangs_ends_at_its_limit_with_all_that_it_started(tmp_path: Path) -> None:
    program = Program(tmp_path, f"sleep 60 & echo $! > {tmp_path}/child; wait", seconds=0.5)
    begin = time.monotonic()
    with pytest.raises(ControlTimeoutError, match=r"'get_server_list' was not answered within 0\.5 s"):
        program.control.server_list()
    assert time.monotonic() - begin < 30
    child = int((tmp_path / "child").read_text())
    for _ in range(100):
        if not _alive(child):
            return
        time.sleep(0.02)
    pytest.fail("the program's child outlived the call")


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_the_known_server_s_status_and_the_list_come_in_one_run(tmp_path: Path) -> None:
    program = answering(tmp_path, "ACTIVE\n501\n[0] 00:00.0, NVIDIA H200\n611.1\n611.2\n700.1")
    assert program.control.survey(501) == ({501: "ACTIVE"}, {611: 2, 700: 1})
    assert program.asked == ["get_server_status 501", "get_server_list", "get_device_client_list"]


def test_a_server_that_has_gone_is_not_listed(tmp_path: Path) -> None:
    assert answering(tmp_path, "Server 501 not found").control.survey(501) == ({}, {})


@pytest.mark.parametrize("status", ["Der Server ist bereit", "\ufffd" * 100_000], ids=["another language", "too long"])
def test_a_status_that_is_no_word_is_a_refusal(tmp_path: Path, status: str) -> None:
    """Such a status would leave no room in state.json for what the agent needs."""
    program = answering(tmp_path, f"{status}\n501\n[0] 00:00.0, NVIDIA H200")
    with pytest.raises(RefusedError, match="get_server_status 501"):
        program.control.survey(501)


def test_a_server_without_clients_has_no_contexts(tmp_path: Path) -> None:
    assert answering(tmp_path, "ACTIVE\n501\n[0] 00:00.0, NVIDIA H200").control.survey(501) == ({501: "ACTIVE"}, {})


@pytest.mark.parametrize(
    ("answer", "value"),
    [("50.0\n16G", (50.0, 16384)), ("50.0", (50.0, None)), ("50.0\n", (50.0, None))],
)
def test_the_daemon_s_limits_are_distinguished_even_without_a_memory_limit(
    tmp_path: Path, answer: str, value: tuple[float, int | None]
) -> None:
    assert answering(tmp_path, answer).control.default_limits() == value


@pytest.mark.parametrize("value", [0, -1, True, 1.5, "16G"])
def test_only_positive_whole_limits_reach_the_daemon(tmp_path: Path, value: object) -> None:
    program = answering(tmp_path, "")
    with pytest.raises(ValueError, match="whole number"):
        program.control.set_default_memory(value)  # type: ignore[arg-type]
    assert not (tmp_path / "asked").exists()


def test_a_command_cannot_smuggle_in_another(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="one line"):
        answering(tmp_path, "").control.default_memory_mib("0\nquit")


def test_the_program_finds_daemon_and_server_by_its_environment(tmp_path: Path) -> None:
    program = Program(tmp_path, 'echo "$CUDA_MPS_PIPE_DIRECTORY $CUDA_MPS_LOG_DIRECTORY ${PATH%%:*}"')
    assert program.control.run("x").split() == [f"{tmp_path}/pipe", f"{tmp_path}/log", str(tmp_path)]
    assert os.environ.get("CUDA_MPS_PIPE_DIRECTORY") is None


@given(st.integers(min_value=1, max_value=10_000_000))
def test_a_limit_is_never_shown_larger_than_it_is_nor_a_gibibyte_smaller(mib: int) -> None:
    assert mib - 1024 < shown_mib(mib) <= mib
    assert shown_mib(shown_mib(mib)) == shown_mib(mib)
