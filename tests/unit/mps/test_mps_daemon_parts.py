"""The daemon's log, its client link, its process on the node, and the limit of open files."""

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpushare.mps.layout import GpuDir
from gpushare.mps.supervisor import client_link, daemon_log
from gpushare.mps.supervisor.daemon_log import DaemonLog
from gpushare.mps.supervisor.daemon_process import DaemonProcess, kill_server
from gpushare.mps.supervisor.open_files import nofile_remark

FAILED = "[2026-11-21 08:23:24.044 Server   611] Failed to start : CUDA-capable device(s) is/are busy or unavailable"
NOISE = "[2026-11-21 08:23:24.540 Control   413] Cmd:get_server_list"


def log_of(tmp_path: Path, *lines: str) -> DaemonLog:
    log = DaemonLog(tmp_path / "log")
    with log.open() as file:
        file.write("".join(f"{line}\n" for line in lines).encode())
    return log


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ((), ""),
        ((NOISE,), ""),
        (("one", "[… Control   406] Server 425 not found", "[… Control   406] ACTIVE", "[… Control   406] 16G"), "one"),
        (("one", "two", NOISE), "two"),
        ((FAILED, "Server encountered a fatal exception. Shutting down", "Server 611 exited", NOISE), FAILED),
        (("An instance of this daemon is already running",), "An instance of this daemon is already running"),
    ],
)
def test_the_line_that_tells_most_is_told(tmp_path: Path, lines: tuple[str, ...], told: str) -> None:
    assert log_of(tmp_path, *lines).telling_line() == told


def test_what_an_earlier_daemon_said_is_not_told_of_a_later_one(tmp_path: Path) -> None:
    log = log_of(tmp_path, FAILED)
    with log.open() as file:
        file.write(b"Starting control daemon\n")
    assert log.telling_line() == "Starting control daemon"


def test_a_log_is_bounded_while_its_writer_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon_log, "MAX_BYTES", 1000)
    log = DaemonLog(tmp_path / "log")
    with log.open() as writer:
        for number in range(100):
            writer.write(f"line {number} {'x' * 50}\n".encode())
            writer.flush()
            log.rotate()
            assert sum(path.stat().st_size for path in (tmp_path / "log").iterdir()) < 2200
        assert log.telling_line().startswith("line 99")
    kept = (tmp_path / "log" / "control.log.1").read_text() + (tmp_path / "log" / "control.log").read_text()
    assert "\0" not in kept
    assert kept.endswith(f"line 99 {'x' * 50}\n")


@pytest.fixture
def gpu(tmp_path: Path) -> GpuDir:
    directory = GpuDir(tmp_path / "GPU-1")
    directory.pipe.mkdir(parents=True)
    return directory


def test_a_link_follows_the_daemon_s_present_socket(gpu: GpuDir) -> None:
    gpu.control.write_text("first")
    client_link.renew(gpu)
    assert client_link.is_current(gpu)
    gpu.control.unlink()
    gpu.control.write_text("second")
    assert not client_link.is_current(gpu)
    assert client_link.exists(gpu)
    client_link.renew(gpu)
    assert client_link.is_current(gpu)
    assert [entry.name for entry in gpu.client.iterdir()] == ["control"]
    client_link.remove(gpu)
    assert not client_link.exists(gpu)


def test_a_renewal_that_fails_leaves_the_old_link(gpu: GpuDir) -> None:
    gpu.control.write_text("first")
    client_link.renew(gpu)
    gpu.control.unlink()
    with pytest.raises(FileNotFoundError):
        client_link.renew(gpu)
    assert gpu.client_control.read_text() == "first"


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
def test_only_what_is_this_directory_s_daemon_is_adopted(gpu: GpuDir, name: str, own_pipe: bool, adopted: bool) -> None:
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


def test_no_pid_file_or_rubbish_in_it_is_no_daemon(gpu: GpuDir) -> None:
    process = DaemonProcess(gpu, None, DaemonLog(gpu.log), lambda: None)
    assert process.adopt() is None
    (gpu.pipe / "nvidia-cuda-mps-control.pid").write_text("soon")
    assert process.adopt() is None


def test_only_an_mps_server_is_killed_as_one(gpu: GpuDir) -> None:
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


@pytest.mark.parametrize(("hard", "told"), [(1024, True), (4096, False), (resource.RLIM_INFINITY, False)])
def test_too_low_a_limit_of_open_files_is_told(hard: int, told: bool) -> None:
    assert (f"may open {hard} files" in nofile_remark(hard)) is told
