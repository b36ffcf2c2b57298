"""Agent and supervisor tell of each control command, and stop at the one that is asked for until they are let go."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from measurements.gpu.stack.control_points import Command, ControlPoints
from measurements.gpu.stack.injected import sitecustomize

PROGRAM = """
from pathlib import Path
from gpushare.mps.control import NoDaemonError
from gpushare.mps.control_socket import ControlSocket
try:
    ControlSocket(Path("/nowhere"), 1.0).survey(7)
except NoDaemonError:
    print("no daemon")
"""
SURVEY = "get_server_status get_server_list get_device_client_list"


def start(directory: Path, part: str) -> "subprocess.Popen[str]":
    program = directory / "gpushare"
    program.write_text(PROGRAM)
    (directory / "sitecustomize.py").write_bytes(Path(sitecustomize.__file__).read_bytes())
    path = {"PYTHONPATH": f"{directory}:{':'.join(entry for entry in sys.path if entry)}"}
    return subprocess.Popen([sys.executable, program, part], env=path, stdout=subprocess.PIPE, text=True)


def hits(directory: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in (directory / sitecustomize.HITS).read_text().splitlines()]


def test_each_call_is_told_before_and_after_also_if_it_fails(tmp_path: Path) -> None:
    points = ControlPoints(tmp_path)
    points.clear()
    process = start(tmp_path, "mps-supervisor")
    assert process.communicate(timeout=60)[0] == "no daemon\n"
    assert [hit["when"] for hit in hits(tmp_path)] == ["before", "after"]
    assert points.passed() == {Command("mps-supervisor", SURVEY)}


def test_other_programs_tell_nothing(tmp_path: Path) -> None:
    process = start(tmp_path, "webhook")
    assert process.communicate(timeout=60)[0] == "no daemon\n"
    assert not (tmp_path / sitecustomize.HITS).exists()


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_process_waits_at_its_point_until_it_is_let_go(tmp_path: Path, when: str) -> None:
    points = ControlPoints(tmp_path)
    points.clear()
    points.ask(Command("agent", SURVEY), when)
    process = start(tmp_path, "agent")
    assert points.wait_held()
    time.sleep(0.1)
    assert process.poll() is None
    assert hits(tmp_path)[-1]["when"] == when
    points.let_go()
    assert process.communicate(timeout=60)[0] == "no daemon\n"


def test_another_command_passes_by(tmp_path: Path) -> None:
    points = ControlPoints(tmp_path)
    points.clear()
    points.ask(Command("agent", "quit"), "before")
    process = start(tmp_path, "agent")
    assert process.communicate(timeout=60)[0] == "no daemon\n"
    assert not (tmp_path / sitecustomize.HELD).exists()
