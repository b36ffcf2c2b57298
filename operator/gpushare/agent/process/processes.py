"""How SIGTERM ends a process, as /proc shows it. Nothing but `proc` is read."""

import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gpushare.procfs import PROC, Owner, owner_of, read_start_time, read_text, start_time

MAX_ANCESTORS = 32

_SIGTERM_BIT = 1 << (signal.SIGTERM - 1)

Identity = tuple[int, int]
"""(PID, start time in clock ticks since boot): no later process of the same PID has it."""


class ProcessIdentity(Protocol):
    """A process; its start time, in clock ticks since boot, distinguishes it from a later one of its PID."""

    @property
    def pid(self) -> int: ...

    @property
    def started(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Process:
    """A process when it was read. `started`: clock ticks since boot. `owner` None: it belongs to no pod."""

    pid: int
    started: int
    catches_sigterm: bool
    owner: Owner | None


@dataclass(frozen=True, slots=True)
class Ancestor:
    """`acts`: catches SIGTERM, or blocks it to wait for it (tini, dumb-init). `first`: PID 1 of its PID namespace."""

    pid: int
    acts: bool
    ignores: bool
    first: bool


def identity(process: ProcessIdentity) -> Identity:
    return process.pid, process.started


def is_alive(process: ProcessIdentity, proc: Path = PROC) -> bool:
    """Whether this very process still has an entry in /proc."""
    return read_start_time(process.pid, proc) == process.started


def read(pid: int, proc: Path = PROC) -> Process | None:
    """None: there is no such process (any more)."""
    directory = proc / str(pid)
    try:
        started = start_time(read_text(directory / "stat"))
        caught = catches_sigterm(read_text(directory / "status"))
        owner = owner_of(read_text(directory / "cgroup"))
    except OSError:
        return None
    return Process(pid, started, caught, owner)


def read_all(pids: Iterable[int], proc: Path) -> list[Process]:
    """Those of `pids` that exist."""
    found = (read(pid, proc) for pid in pids)
    return [process for process in found if process is not None]


def read_has_mount(pid: int, path: str, proc: Path = PROC) -> bool | None:
    """Whether the process sees a mount at `path`. None: there is no such process (any more)."""
    try:
        return has_mount(read_text(proc / str(pid) / "mountinfo"), path)
    except OSError:
        return None


def ancestors(pid: int, owner: Owner, proc: Path = PROC) -> list[Ancestor]:
    """Of a process, within its own container, the parent first. One that has ended meanwhile ends the list."""
    found: list[Ancestor] = []
    parent = _parent(pid, proc)
    while parent > 1 and len(found) < MAX_ANCESTORS:
        try:
            if owner_of(read_text(proc / str(parent) / "cgroup")) != owner:
                break
            status = read_text(proc / str(parent) / "status")
        except OSError:
            break
        fields = dict(line.split(":", 1) for line in status.split("\n") if ":" in line)
        found.append(_ancestor(parent, fields))
        parent = int(fields.get("PPid", "0"))
    return found


def fatal_ancestor(ancestors: Sequence[Ancestor]) -> int | None:
    """PID of the ancestor whose end by SIGTERM kills the process too; None: there is none.

    A container's main process alone is sent SIGTERM. When it ends, the kernel or the runtime kills everything else in
    the container at once. So catching SIGTERM gives a process time only if nothing that it depends on dies of the
    signal.

    `ancestors`: from the parent to the container's main process; empty for the main process itself. The kernel drops a
    SIGTERM for a PID 1 that does nothing about it, so nobody below it dies of that signal. Does not know of a main
    process that catches the signal and exits before its children: it is trusted not to.
    """
    if not ancestors:
        return None
    main = ancestors[-1]
    if main.ignores or (main.first and not main.acts):
        return None
    return next((one.pid for one in ancestors if not one.acts and not one.ignores), None)


def has_mount(mountinfo: str, path: str) -> bool:
    """From the text of /proc/PID/mountinfo (proc(5)): whether something is mounted at `path`."""
    return any(line.split(" ")[4:5] == [path] for line in mountinfo.split("\n"))


def catches_sigterm(status: str) -> bool:
    """From the text of /proc/PID/status: whether the process has a handler of its own for SIGTERM (SigCgt)."""
    for line in status.split("\n"):
        if line.startswith("SigCgt:"):
            return bool(int(line.removeprefix("SigCgt:"), 16) & _SIGTERM_BIT)
    return False


def _ancestor(pid: int, status: dict[str, str]) -> Ancestor:
    def has(mask: str) -> bool:
        return bool(int(status.get(mask, "0"), 16) & _SIGTERM_BIT)

    inside = status.get("NSpid", "").split()
    return Ancestor(pid, has("SigCgt") or has("SigBlk"), has("SigIgn"), inside[-1:] == ["1"])


def _parent(pid: int, proc: Path) -> int:
    try:
        for line in read_text(proc / str(pid) / "status").split("\n"):
            if line.startswith("PPid:"):
                return int(line.removeprefix("PPid:"))
    except OSError:
        pass
    return 0
