"""A simulated GPU under MPS, and the workload's programs as its clients."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import Any

import pytest

from tests.unit.simulation.conftest import daemon, driver

__all__ = ["daemon", "driver"]

SECONDS = 60.0
MIB = 1 << 20


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
        """Its exit code, once it has ended by itself."""
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
        """Its exit code after SIGTERM. It has SECONDS, long before its work would be done: a busy machine is slow."""
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
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
                tracker = b"resource_tracker" in (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if int(fields[1]) == parent and not tracker:
                found.add(int(entry.name))
    return found


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
