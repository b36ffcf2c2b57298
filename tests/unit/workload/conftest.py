"""A simulated GPU under MPS, and the workload's programs as its clients."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import Any

import pytest

from tests.unit.simulation.conftest import SECONDS as DRIVER_SECONDS
from tests.unit.simulation.conftest import daemon, driver, start_driver

__all__ = ["daemon", "driver"]

SECONDS = 60.0
MIB = 1 << 20

Write = Callable[[str], tuple[str, ...]]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory of the driver of one simulated GPU; daemons go into `tmp` beside it."""
    with tempfile.TemporaryDirectory(prefix="sim-") as base:
        directory = Path(base)
        directory.chmod(0o755)
        (directory / "tmp").mkdir()
        monkeypatch.setenv("GPUSHARE_SIMULATION_DIR", base)
        monkeypatch.setenv("TMPDIR", f"{base}/tmp")
        monkeypatch.setattr(tempfile, "tempdir", f"{base}/tmp")
        for name in ("CUDA_VISIBLE_DEVICES", "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"):
            monkeypatch.delenv(name, raising=False)
        process = start_driver(directory, gpus=1)
        yield directory
        process.terminate()
        process.wait(DRIVER_SECONDS)


class Client:
    """One program of the workload in a process of its own."""

    def __init__(self, arguments: tuple[str, ...], environment: dict[str, str]) -> None:
        command = [sys.executable, "-m", "gpushare_workload.cli", "run", *arguments, "--backend", "numpy"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ) | environment)
        self.lines: list[dict[str, Any]] = []
        self._output: Queue[str] = Queue()
        self._reader = Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._output.put(line)
        self._output.put("")

    def wait_for(self, event: str) -> dict[str, Any]:
        end = time.monotonic() + SECONDS
        while not (self.lines and self.lines[-1]["event"] == event):
            try:
                line = self._output.get(timeout=max(0.0, end - time.monotonic()))
            except Empty:
                raise AssertionError(f"no {event} among {self.lines}") from None
            assert line, f"ended without {event}: {self.lines}"
            self.lines.append(json.loads(line))
        return self.lines[-1]

    def end(self) -> int:
        """The exit code, once it has ended by itself."""
        status = self.process.wait(SECONDS)
        self._reader.join(SECONDS)
        while line := self._output.get_nowait():
            self.lines.append(json.loads(line))
        return status

    def clean_up(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(SECONDS)
        self._reader.join(SECONDS)

    def terminate(self) -> int:
        """The exit code after SIGTERM, within SECONDS: much less than its work takes, and enough on a busy machine."""
        self.process.send_signal(signal.SIGTERM)
        return self.end()


@pytest.fixture
def start_client() -> Iterator[Callable[..., Client]]:
    """`start_client("hog", "--hold", "1", memory_mib=4096, GPUSHARE_THREADS="25")`."""
    started: list[Client] = []

    def start(*arguments: str, memory_mib: int | None = None, **environment: str) -> Client:
        if memory_mib is not None:
            environment["GPUSHARE_MEMORY_BYTES"] = str(memory_mib * MIB)
            environment.setdefault("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", f"0={memory_mib}M")
        started.append(Client(arguments, environment))
        return started[-1]

    yield start
    for client in started:
        client.clean_up()


def children(parent: int) -> set[int]:
    """The children of a process that are workers, zombies included."""
    pids = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
                tracker = b"resource_tracker" in (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if int(fields[1]) == parent and not tracker:
                pids.add(int(entry.name))
    return pids


def wait_gone(pids: Iterable[int]) -> None:
    """Returns once none of them runs."""
    end = time.monotonic() + SECONDS
    while left := [pid for pid in pids if _runs(pid)]:
        assert time.monotonic() < end, f"{left} are still there"
        time.sleep(0.02)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def nothing_left_behind() -> Iterator[None]:
    """Fails a test that leaves a child process, a zombie or something in /dev/shm."""
    before, shared = children(os.getpid()), set(Path("/dev/shm").iterdir())
    yield
    assert children(os.getpid()) == before
    assert set(Path("/dev/shm").iterdir()) == shared


@pytest.fixture
def script(tmp_path: Path) -> Write:
    """`script(text)`: the command of a program of that text; it prints figures by `figure(**fields)`."""
    head = (
        "import json, os, signal, subprocess, sys, time\n"
        "def figure(**fields):\n"
        "    print(json.dumps(fields), flush=True)\n"
        "def forever():\n"
        "    while True:\n"
        "        figure(rate=100, ms=[1.0, 2.0])\n"
        "        time.sleep(0.05)\n"
    )

    def write(text: str) -> tuple[str, ...]:
        path = tmp_path / f"program-{len(list(tmp_path.glob('program-*')))}.py"
        path.write_text(head + text)
        return sys.executable, str(path)

    return write


@pytest.fixture
def nothing_left(tmp_path: Path) -> Iterator[None]:
    """Fails a test that leaves a process with a script of its own."""
    yield
    assert running(tmp_path) == []


def running(folder: Path) -> list[int]:
    """PIDs of processes that run a script of that folder."""
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if f"{folder}/program-".encode() in (entry / "cmdline").read_bytes():
                    pids.append(int(entry.name))
            except OSError:
                continue
    return pids
