"""Processes by PID and start time, because the kernel reuses PIDs."""

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")
POLL_SECONDS = 0.02


def start_time(pid: int) -> int | None:
    """In clock ticks since boot (proc(5), field 22); None if the process does not exist or has ended."""
    try:
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in ("Z", "X") else int(fields[19])


def name(pid: int) -> str | None:
    try:
        return (PROC / str(pid) / "comm").read_text().strip()
    except OSError:
        return None


def names(pids: Iterable[int]) -> dict[int, str]:
    return {pid: found for pid in pids if (found := name(pid)) is not None}


def is_daemon_of(pid: int, program: str, pipe: Path) -> bool:
    """Whether `pid` is an MPS daemon on the pipe directory `pipe`, by its command line and its environment."""
    try:
        command = (PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
        environment = (PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return False
    named = any(Path(os.fsdecode(word)).name == program for word in command if word)
    return named and f"CUDA_MPS_PIPE_DIRECTORY={pipe}".encode() in environment


def gone(pid: int, started: int | None, seconds: float) -> bool:
    """Waits for the end of that process. False if it still exists after `seconds`."""
    end = time.monotonic() + seconds
    while started is not None and start_time(pid) == started:
        if time.monotonic() >= end:
            return False
        time.sleep(POLL_SECONDS)
    return True


def end(pid: int, seconds: float) -> bool:
    """Ends a process by SIGTERM, then by SIGKILL. True if it is gone."""
    started = start_time(pid)
    for number in (signal.SIGTERM, signal.SIGKILL):
        if started is None or start_time(pid) != started:
            return True
        with suppress(ProcessLookupError):
            os.kill(pid, number)
        if gone(pid, started, seconds):
            return True
    return False
