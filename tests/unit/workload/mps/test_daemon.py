"""The benchmark's own daemon, on a simulated GPU: private, with limits read back, and gone whatever happens."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpushare.mps.control import PROGRAM, ControlError, ControlProgram
from gpushare.process.procfs import read_start_of_running
from gpushare.simulation.client import SimulatedContext
from gpushare_workload.gpus.inventory import open_monitor
from gpushare_workload.gpus.monitor import GpuMonitor
from gpushare_workload.mps import directory
from gpushare_workload.mps.daemon import OwnDaemon, prepared, running_server, set_threads
from gpushare_workload.mps.directory import DaemonDirectory


def monitor() -> GpuMonitor:
    opened = open_monitor()
    assert opened is not None
    return opened


def left(gpu: Path) -> list[Path]:
    return list(gpu.glob("tmp/gpushare-bench-*/GPU-*/pipe"))


def daemon_of(environment: dict[str, str]) -> int:
    pid = DaemonDirectory(Path(environment["CUDA_MPS_PIPE_DIRECTORY"]).parent).daemon()
    assert pid is not None
    return pid


def test_a_daemons_clients_get_the_threads_that_were_asked_for(gpu: Path) -> None:
    with prepared(monitor(), exclusive=False) as (daemon, cleared), daemon.ready_for(12.5) as environment:
        context = SimulatedContext.create({**os.environ, **environment})
        assert (context.under_mps, context.sms) == (True, 16)
        context.close()
        assert cleared == []


def test_the_daemon_serves_a_private_directory_and_leaves_nothing(gpu: Path) -> None:
    with prepared(monitor(), exclusive=False) as (daemon, _):
        with daemon.ready_for(100) as environment:
            pipe, pid = Path(environment["CUDA_MPS_PIPE_DIRECTORY"]), daemon_of(environment)
            assert pipe.parent.parent == directory.base()
            assert directory.base().stat().st_mode & 0o777 == 0o700
        assert read_start_of_running(pid) is None
    assert left(gpu) == []


def test_time_slicing_is_measured_without_any_daemon(gpu: Path) -> None:
    with prepared(monitor(), exclusive=False) as (daemon, _), daemon.ready_for(None) as environment:
        context = SimulatedContext.create({**os.environ, **environment})
        assert not context.under_mps
        context.close()
        processes = monitor().processes()
        assert not processes.others.keys() - {os.getpid()}


def test_an_exception_ends_the_daemon_and_restores_the_compute_mode(gpu: Path) -> None:
    seen: dict[str, object] = {}

    def fail(daemon: OwnDaemon) -> None:
        with daemon.ready_for(100) as environment:
            seen.update(pid=daemon_of(environment), mode=monitor().compute_mode())
            raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"), prepared(monitor(), exclusive=True) as (daemon, _):
        fail(daemon)
    assert seen["mode"] == "ExclusiveProcess"
    assert monitor().compute_mode() == "Default"
    assert read_start_of_running(int(str(seen["pid"]))) is None
    assert left(gpu) == []


KILLED = """
import os, sys
from gpushare_workload.gpus.inventory import open_monitor
from gpushare_workload.mps.daemon import prepared
with prepared(open_monitor(), exclusive=True) as (daemon, _), daemon.ready_for(100) as environment:
    print(environment["CUDA_MPS_PIPE_DIRECTORY"], flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def other_benchmark(gpu: Path) -> Callable[[], tuple[subprocess.Popen[str], int]]:
    """Another process with a daemon of its own: (process, the daemon's PID)."""

    def start() -> tuple[subprocess.Popen[str], int]:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        process = subprocess.Popen([sys.executable, "-c", KILLED], text=True, **pipes)
        assert process.stdout is not None
        return process, daemon_of({"CUDA_MPS_PIPE_DIRECTORY": process.stdout.readline().strip()})

    return start


Start = Callable[[], tuple[subprocess.Popen[str], int]]


def test_what_a_killed_benchmark_left_is_cleared_by_the_next(gpu: Path, other_benchmark: Start) -> None:
    process, pid = other_benchmark()
    process.send_signal(signal.SIGKILL)
    process.wait(30)
    assert read_start_of_running(pid) is not None
    assert monitor().compute_mode() == "ExclusiveProcess"
    with prepared(monitor(), exclusive=False) as (_, cleared):
        assert read_start_of_running(pid) is None
        assert monitor().compute_mode() == "Default"
        assert len(cleared) == 1
        assert f"and ended PID {pid}" in cleared[0]


def test_a_benchmark_that_still_runs_is_left_alone(gpu: Path, other_benchmark: Start) -> None:
    process, pid = other_benchmark()
    with (
        pytest.raises(ValueError, match=f"another benchmark uses GPU-.*: PID {process.pid}"),
        prepared(monitor(), False),
    ):
        pass
    assert read_start_of_running(pid) is not None
    process.communicate("", timeout=30)
    assert read_start_of_running(pid) is None


def test_a_gpu_that_somebody_uses_is_refused(gpu: Path) -> None:
    context = SimulatedContext.create()
    with pytest.raises(ValueError, match=rf"a process is on GPU-.*: PID {os.getpid()} \("), prepared(monitor(), False):
        pass
    context.close()


def test_a_directory_that_others_can_enter_is_refused(tmp_path: Path) -> None:
    (tmp_path / f"gpushare-bench-{os.getuid()}").mkdir(mode=0o755)
    with pytest.raises(ValueError, match="is not a directory of yours alone"):
        directory.base(tmp_path)


def control(directory: Path, script: str) -> ControlProgram:
    """Commands to a control program that runs `script`."""
    path = directory / PROGRAM
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return ControlProgram(directory, directory / "pipe", directory / "log", seconds=15.0)


def test_a_daemon_that_gives_other_threads_than_asked_for_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ControlError, match=r"asked to give 12.5 % of the threads and gives 100 %"):
        set_threads(control(tmp_path, "cat >/dev/null; echo 100.0"), 12.5)


def test_a_daemon_whose_limit_is_no_number_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ControlError, match=r"answers 'busy' when asked for its thread limit"):
        set_threads(control(tmp_path, "cat >/dev/null; echo busy"), 12.5)


SERVER = """read -r command
case "$command" in
get_server_list) echo 7 ;;
get_server_status*) echo >> asked; [ "$(wc -l < asked)" -gt 2 ] && echo {then} || echo INITIALIZING ;;
esac"""


def test_a_server_that_is_still_starting_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert running_server(control(tmp_path, SERVER.format(then="ACTIVE"))) == 7


def test_a_server_that_ends_up_in_another_state_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ControlError, match="server 7 is FAULT, not ACTIVE"):
        running_server(control(tmp_path, SERVER.format(then="FAULT")))
