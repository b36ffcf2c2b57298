"""Which signals end a process, as /proc shows it. Nothing but `proc` is read."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gpushare.process.procfs import PROC, TICKS_PER_SECOND, Owner, owners_of, read_start_time, read_text, start_time

MAX_ANCESTORS = 32
MAX_COMMAND_BYTES = 4096


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
    """A process when it was read. `started`: clock ticks since boot. `caught`: the mask of the signals that it has
    handlers for. `owners`: its pods by its cgroup, the outermost first; empty: it belongs to no pod.
    """

    pid: int
    started: int
    caught: int
    owners: tuple[Owner, ...]

    def catches(self, number: int) -> bool:
        """Whether it has a handler of its own for the signal."""
        return _has(self.caught, number)


@dataclass(frozen=True, slots=True)
class Ancestor:
    """`acts`: it catches the signal, or blocks it to wait for it (tini, dumb-init). `first`: PID 1 of its namespace."""

    pid: int
    acts: bool
    ignores: bool
    first: bool


def identity(process: ProcessIdentity) -> Identity:
    return process.pid, process.started


def started_at(process: ProcessIdentity) -> float:
    """The start in CLOCK_BOOTTIME seconds (proc(5): start times count from boot)."""
    return process.started / TICKS_PER_SECOND


def is_alive(process: ProcessIdentity, proc: Path = PROC) -> bool:
    """Whether this very process still has an entry in /proc."""
    return read_start_time(process.pid, proc) == process.started


def read(pid: int, proc: Path = PROC) -> Process | None:
    """The process; None: there is none (any more)."""
    directory = proc / str(pid)
    try:
        started = start_time(read_text(directory / "stat"))
        caught = caught_signals(read_text(directory / "status"))
        owners = owners_of(read_text(directory / "cgroup"))
    except OSError:
        return None
    return Process(pid, started, caught, owners)


def read_all(pids: Iterable[int], proc: Path) -> list[Process]:
    """The ones of `pids` that exist."""
    processes = (read(pid, proc) for pid in pids)
    return [process for process in processes if process is not None]


def read_has_mount(pid: int, path: str, proc: Path = PROC) -> bool | None:
    """Whether the process sees a mount at `path`. None: there is no such process (any more)."""
    try:
        return has_mount(read_text(proc / str(pid) / "mountinfo"), path)
    except OSError:
        return None


def read_words(pid: int, proc: Path = PROC) -> list[str]:
    """The beginning of its command line, of up to MAX_COMMAND_BYTES: a process may have megabytes of it. OSError: it is
    gone.
    """
    with (proc / str(pid) / "cmdline").open("rb") as file:
        return [word.decode(errors="replace") for word in file.read(MAX_COMMAND_BYTES).split(b"\0") if word]


def ancestors(pid: int, owner: Owner, number: int, proc: Path = PROC) -> list[Ancestor]:
    """The ancestors of a process within its own container, the parent first. One that has ended meanwhile ends the
    list.

    `number`: the signal that they are judged by.
    """
    listed: list[Ancestor] = []
    parent = _parent(pid, proc)
    while parent > 1 and len(listed) < MAX_ANCESTORS:
        try:
            if owner not in owners_of(read_text(proc / str(parent) / "cgroup")):
                break
            status = read_text(proc / str(parent) / "status")
        except OSError:
            break
        fields = dict(line.split(":", 1) for line in status.split("\n") if ":" in line)
        listed.append(_ancestor(parent, fields, number))
        parent = int(fields.get("PPid", "0"))
    return listed


def fatal_ancestor(ancestors: Sequence[Ancestor]) -> int | None:
    """PID of the ancestor whose end by its container's stop signal kills the process too; None: there is none.

    A container's main process alone is sent that signal. When it ends, the kernel or the runtime kills everything else
    in the container at once. So catching the signal gives a process time only if nothing that it depends on dies of it.

    `ancestors`: from the parent to the container's main process; empty for the main process itself. The kernel drops
    the signal for a PID 1 that does nothing about it, so nobody below it dies of that signal. Does not know of a main
    process that catches the signal and exits before its children: it is trusted not to.
    """
    if not ancestors:
        return None
    main = ancestors[-1]
    if main.ignores or (main.first and not main.acts):
        return None
    return next((ancestor.pid for ancestor in ancestors if not ancestor.acts and not ancestor.ignores), None)


def has_mount(mountinfo: str, path: str) -> bool:
    """Whether something is mounted at `path`, from the text of /proc/PID/mountinfo (proc(5))."""
    return any(line.split(" ")[4:5] == [path] for line in mountinfo.split("\n"))


def caught_signals(status: str) -> int:
    """The mask, from the text of /proc/PID/status, of the signals with a handler of the process' own (SigCgt)."""
    for line in status.split("\n"):
        if line.startswith("SigCgt:"):
            return int(line.removeprefix("SigCgt:"), 16)
    return 0


def _has(mask: int, number: int) -> bool:
    return bool(mask >> (number - 1) & 1)


def _ancestor(pid: int, status: dict[str, str], number: int) -> Ancestor:
    def has(mask: str) -> bool:
        return _has(int(status.get(mask, "0"), 16), number)

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
