"""Commands to an MPS daemon: limits are read back, and every command has a time limit."""

import os
from pathlib import Path

import pytest

from gpushare_workload.bench.daemon import control
from gpushare_workload.bench.daemon.control import DaemonError


def program(directory: Path, script: str) -> str:
    """A control program that runs `script`."""
    path = directory / "control"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_a_daemon_that_gives_other_threads_than_asked_for_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DaemonError, match=r"asked to give 12.5 % of the threads and gives 100 %"):
        control.set_threads(program(tmp_path, "cat >/dev/null; echo 100.0"), os.environ, 12.5)


def test_a_daemon_whose_limit_is_no_number_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DaemonError, match=r"answers 'busy' when asked for its thread limit"):
        control.set_threads(program(tmp_path, "cat >/dev/null; echo busy"), os.environ, 12.5)


def test_a_daemon_that_does_not_answer_is_an_error_within_its_time(tmp_path: Path) -> None:
    with pytest.raises(DaemonError, match=r"'get_server_list' was not answered within 0\.2 s"):
        control.ask(program(tmp_path, "exec sleep 60"), os.environ, "get_server_list", seconds=0.2)


SERVER = """read -r command
case "$command" in
get_server_list) echo 7 ;;
get_server_status*) echo >> asked; [ "$(wc -l < asked)" -gt 2 ] && echo {then} || echo INITIALIZING ;;
esac"""


def test_a_server_that_is_still_starting_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert control.server(program(tmp_path, SERVER.format(then="ACTIVE")), os.environ) == 7


def test_a_server_that_ends_up_in_another_state_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DaemonError, match="server 7 is FAULT, not ACTIVE"):
        control.server(program(tmp_path, SERVER.format(then="FAULT")), os.environ)
