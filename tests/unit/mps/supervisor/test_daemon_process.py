"""The daemon as a process: which process is adopted as a daemon, and which is killed as a server."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpushare.mps.layout import GpuDir
from gpushare.mps.supervisor.daemon_log import DaemonLog
from gpushare.mps.supervisor.daemon_process import DaemonProcess, kill_server


@pytest.fixture
def gpu(tmp_path: Path) -> GpuDir:
    directory = GpuDir(tmp_path / "GPU-1")
    directory.pipe.mkdir(parents=True)
    return directory


def impostor(name: str, pipe: Path) -> "subprocess.Popen[bytes]":
    """A process whose command line names `name`, with a pipe directory in its environment."""
    process = subprocess.Popen(
        [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)", name],
        env={**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(pipe)},
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    return process


@pytest.mark.parametrize(
    ("name", "own_pipe", "adopted"),
    [
        ("/opt/bin/nvidia-cuda-mps-control", True, True),
        ("/opt/bin/nvidia-cuda-mps-control", False, False),
        ("something-else", True, False),
    ],
    ids=["a daemon of this directory", "a daemon of another directory", "a process that got the old PID"],
)
def test_only_a_daemon_of_this_directory_is_adopted(gpu: GpuDir, name: str, own_pipe: bool, adopted: bool) -> None:
    other = impostor(name, gpu.pipe if own_pipe else gpu.path / "other")
    (gpu.pipe / "nvidia-cuda-mps-control.pid").write_text(str(other.pid))
    process = DaemonProcess(gpu, None, DaemonLog(gpu.log), lambda: None)
    try:
        assert (process.adopt() == other.pid) is adopted
        assert process.pid == (other.pid if adopted else None)
    finally:
        other.kill()
        other.wait()
    assert process.pid is None


def test_without_a_readable_pid_file_there_is_no_daemon(gpu: GpuDir) -> None:
    process = DaemonProcess(gpu, None, DaemonLog(gpu.log), lambda: None)
    assert process.adopt() is None
    (gpu.pipe / "nvidia-cuda-mps-control.pid").write_text("soon")
    assert process.adopt() is None


def test_only_an_mps_server_is_killed(gpu: GpuDir) -> None:
    innocent, server = (impostor(name, gpu.pipe) for name in ("other", "nvidia-cuda-mps-server"))
    try:
        assert not kill_server(innocent.pid)
        assert kill_server(server.pid)
        assert server.wait(5) == -signal.SIGKILL
        assert innocent.poll() is None
    finally:
        innocent.kill()
        innocent.wait()
    assert not kill_server(server.pid)
