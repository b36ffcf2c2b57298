"""ControlProgramV3 against an executable that answers as NVIDIA's documentation has it, and as it does not."""

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpushare.mps.control import ControlTimeoutError, NoDaemonError, RefusedError
from gpushare.mps.control_v3 import ControlProgramV3, MpsNamespace

SERVER = "share,0,48201,Ready,/run/p/share,GPU-abcd-1234,-"
NAMESPACES = "default,share,Ready,8G,50.00,0,/run/p/share/default\nhigh,share,Ready,512M,25,1,/run/p/share/high"
UNLIMITED = "default,share,Ready,-,100.00,0,/run/p/share/default"
CLIENTS = "51023,share,0,default,python train.py\n51087,share,0,high,python eval.py"


class Program:
    """`bodies`: shell commands by module and verb; `asked`: the command lines so far."""

    def __init__(self, directory: Path, seconds: float = 5.0) -> None:
        self.directory = directory
        self.bodies: dict[str, str] = {}
        (directory / "pipe").mkdir()
        self.control = ControlProgramV3(directory, directory / "pipe", directory / "log", seconds)

    def hang(self, command: str) -> None:
        self.bodies[command] = "sleep 60"
        self._write()

    def answer(self, command: str, text: str, code: int = 0) -> None:
        (self.directory / command.replace(" ", "-")).write_text(text + "\n" if text else "")
        self.bodies[command] = f"cat {self.directory}/{command.replace(' ', '-')}; exit {code}"
        self._write()

    def _write(self) -> None:
        cases = "\n".join(f"'{command}') {body};;" for command, body in self.bodies.items())
        program = self.directory / "nvidia-cuda-mps-control"
        program.write_text(f'#!/bin/bash\necho "$@" >> {self.directory}/asked\ncase "$3 $4" in\n{cases}\nesac\n')
        program.chmod(0o755)

    @property
    def asked(self) -> list[str]:
        return (self.directory / "asked").read_text().splitlines()


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    made = Program(tmp_path)
    made.answer("server list", SERVER)
    made.answer("namespace list", NAMESPACES)
    made.answer("client list", CLIENTS)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(tmp_path / "pipe/control"))
        yield made


def test_lists_are_read_as_they_are_documented(program: Program) -> None:
    control = program.control
    assert control.survey(None) == ({48201: "ACTIVE"}, {51023: 1, 51087: 1})
    assert (control.server_list(), control.sound_servers()) == ([48201], [48201])
    assert control.clients(48201) == control.listed == [51023, 51087]
    assert control.server_limits(48201) == (50.0, 8192)
    assert control.namespaces()["high"] == MpsNamespace(25.0, 512, Path("/run/p/share/high"))
    assert program.asked[0] == "-p 3 server list --format=csv,noheader"
    assert "-p 3 client list --server=share --format=csv,noheader" in program.asked


@pytest.mark.parametrize(
    ("call", "command"),
    [
        (lambda c: c.start_server(), "server create share --uid=0"),
        (
            lambda c: c.write_server_limits(48201, 50, 8192),
            "server set share --active-thread-percentage=50 --pinned-memory-limit=8192M",
        ),
        (lambda c: c.create_namespace("high"), "namespace create high --server=share"),
        (
            lambda c: c.set_namespace("high", 5, 1),
            "namespace set high --server=share --active-thread-percentage=5 --pinned-memory-limit=1M",
        ),
        (lambda c: c.delete_namespace("high"), "namespace delete high --server=share"),
        (lambda c: c.terminate_client(48201, 51087), "client terminate 51087"),
    ],
)
def test_changes_are_asked_for_as_they_are_documented(
    program: Program, call: Callable[[ControlProgramV3], object], command: str
) -> None:
    call(program.control)
    assert program.asked[-1] == f"-p 3 {command}"


@pytest.mark.parametrize(
    ("command", "text", "call"),
    [
        ("server list", "no table at all", lambda c: c.server_list()),
        ("namespace list", "default,share,Ready,8G,half,0,/p", lambda c: c.namespaces()),
        ("namespace list", "default,share", lambda c: c.server_limits(1)),
        ("namespace list", "other,share,Ready,8G,50,0,/p", lambda c: c.server_limits(1)),
        ("client list", "Something went wrong", lambda c: c.clients(48201)),
    ],
)
def test_an_answer_of_another_form_is_refused_with_its_text(
    program: Program, command: str, text: str, call: Callable[[ControlProgramV3], object]
) -> None:
    program.answer(command, text)
    with pytest.raises(RefusedError):
        call(program.control)


def test_a_list_that_could_not_be_made_is_no_empty_list(program: Program) -> None:
    """An empty list of clients lets a daemon be stopped."""
    program.answer("client list", "", code=1)
    with pytest.raises(RefusedError, match="exit status 1"):
        program.control.clients(48201)


@pytest.mark.parametrize(("status", "young", "shown"), [("Ready", True, "ACTIVE"), ("Odd", True, "INITIALIZING"),
                                                        ("Odd", False, "Odd")])  # fmt: skip
def test_a_server_that_was_just_asked_for_starts_whatever_word_is_used(
    program: Program, status: str, young: bool, shown: str
) -> None:
    program.answer("server list", SERVER.replace("Ready", status))
    if young:
        program.control.start_server()
    assert program.control.survey(None)[0] == {48201: shown}
    assert bool(program.control.sound_servers()) is (status == "Ready")


@pytest.mark.parametrize("row", ["", SERVER.replace("48201", "-"), SERVER.replace("share,0", "other,0")])
def test_without_a_process_there_is_no_server(program: Program, row: str) -> None:
    program.answer("server list", row)
    assert program.control.survey(48201) == ({}, {})


def test_a_limit_that_is_not_set_or_not_understood_is_none(program: Program) -> None:
    program.answer("namespace list", UNLIMITED)
    assert program.control.server_limits(48201) == (100.0, None)


def test_lines_of_a_clients_own_are_no_reason_to_refuse_the_list(program: Program) -> None:
    program.answer("client list", "51023,share,0,default,python -c \nimport torch\n7,other,0,default,x")
    assert program.control.clients(48201) == [51023]


def test_a_process_that_is_not_listed_is_not_terminated(program: Program) -> None:
    assert not program.control.terminate_client(48201, 4711)
    assert not any("terminate" in line for line in program.asked)


def test_a_daemon_with_clients_is_not_stopped(program: Program) -> None:
    with pytest.raises(Exception, match="has clients: 2"):
        program.control.quit()
    assert "-p 3 -q" not in program.asked
    program.answer("client list", "")
    program.control.quit()
    assert program.asked[-1] == "-p 3 -q"


@pytest.mark.parametrize("name", ["", "../x", "a b", "UPPER", "--force", "x" * 65, "a\nb"])
def test_only_names_as_documented_reach_a_command_line(program: Program, name: str) -> None:
    for call in (program.control.create_namespace, program.control.delete_namespace):
        with pytest.raises(ValueError, match="lower-case"):
            call(name)


@pytest.mark.parametrize("limits", [(0, 1), (101, 1), (50, 0), (50, -1)])
def test_limits_out_of_range_reach_no_command_line(program: Program, limits: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="not"):
        program.control.set_namespace("high", *limits)


def test_without_its_socket_there_is_no_daemon(program: Program) -> None:
    (program.directory / "pipe/control").unlink()
    with pytest.raises(NoDaemonError):
        program.control.server_list()


def test_a_command_that_hangs_is_given_up(tmp_path: Path) -> None:
    program = Program(tmp_path, seconds=0.3)
    program.hang("server list")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(tmp_path / "pipe/control"))
        with pytest.raises(ControlTimeoutError):
            program.control.server_list()
