"""Processes on this machine by PID and start time, because the kernel reuses PIDs."""

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from gpushare.process.procfs import PROC, read_environment, read_start_of_running
from gpushare_workload.mps.modes import PIPE

POLL_SECONDS = 0.02


def names(pids: Iterable[int]) -> dict[int, str]:
    """The name of each process that exists, by its PID."""
    known = {}
    for pid in pids:
        with suppress(OSError):
            known[pid] = (PROC / str(pid) / "comm").read_text(errors="replace").strip()
    return known


def is_daemon_of(pid: int, program: str, pipe: Path) -> bool:
    """Whether `pid` is an MPS daemon on the pipe directory `pipe`, by its command line and its environment."""
    try:
        command = (PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    named = any(Path(os.fsdecode(word)).name == program for word in command if word)
    return named and read_environment(pid, (PIPE,)) == {PIPE: str(pipe)}


def gone(pid: int, started: int | None, seconds: float) -> bool:
    """Waits for the end of the process that started then. False if it still exists after `seconds`."""
    end = time.monotonic() + seconds
    while started is not None and read_start_of_running(pid) == started:
        if time.monotonic() >= end:
            return False
        time.sleep(POLL_SECONDS)
    return True


def end(pid: int, seconds: float) -> bool:
    """Ends a process by SIGTERM, then by SIGKILL. True if it is gone."""
    started = read_start_of_running(pid)
    for number in (signal.SIGTERM, signal.SIGKILL):
        if started is None or read_start_of_running(pid) != started:
            return True
        with suppress(ProcessLookupError):
            os.kill(pid, number)
        if gone(pid, started, seconds):
            return True
    return False
