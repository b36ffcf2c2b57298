"""Which signals end a process, as /proc shows it. Nothing but `proc` is read."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gpushare.process.bounded_read import GONE, lines, read_start
from gpushare.process.procfs import PROC, TICKS_PER_SECOND, Owner, read_owners, read_start_time
from gpushare.process.termination_log import read_named_owners

MAX_ANCESTORS = 32
MAX_COMMAND_BYTES = 4096
_OF_ANCESTORS = ("PPid", "NSpid", "SigBlk", "SigIgn", "SigCgt")

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
    """Whether this very process still has an entry in /proc. OSError: that is not known."""
    return read_start_time(process.pid, proc) == process.started


def read(pid: int, proc: Path = PROC) -> Process | None:
    """The process; None: there is none (any more). OSError: that is not known."""
    started = read_start_time(pid, proc)
    status = None if started is None else read_status(pid, ("SigCgt",), proc)
    owners = None if status is None else read_named_owners(pid, proc)
    if started is None or status is None or owners is None:
        return None
    return Process(pid, started, caught_signals(status), owners)


def read_all(pids: Iterable[int], proc: Path) -> list[Process]:
    """The ones of `pids` that exist, without those of which that is not known: observation reports these (`usage`), and
    they keep nobody from knowing the others.
    """
    known = []
    for pid in pids:
        with suppress(OSError):
            if (process := read(pid, proc)) is not None:
                known.append(process)
    return known


def read_words(pid: int, proc: Path = PROC) -> list[str]:
    """The beginning of its command line, of up to MAX_COMMAND_BYTES: a process chooses how long it is. OSError: it is
    gone, or that is not known.
    """
    content = read_start(proc / str(pid) / "cmdline", MAX_COMMAND_BYTES)
    return [word.decode(errors="replace") for word in content.split(b"\0") if word]


def read_status(pid: int, wanted: Collection[str], proc: Path = PROC) -> dict[str, str] | None:
    """The `wanted` fields of /proc/PID/status, as far as it has them. None: there is no such process (any more).

    Read up to the last of them: before the masks of signals are the process' groups, 65,536 at most. OSError: they are
    not known.
    """
    fields: dict[str, str] = {}
    try:
        for line in lines(proc / str(pid) / "status"):
            name, separator, value = line.decode(errors="replace").partition(":")
            if separator and name in wanted:
                fields.setdefault(name, value.strip())
                if len(fields) == len(wanted):
                    break
    except GONE:
        return None
    return fields


def ancestors(pid: int, owner: Owner, number: int, proc: Path = PROC) -> list[Ancestor]:
    """The ancestors of a process within its own container, the parent first. One that has ended meanwhile ends the
    list.

    `number`: the signal that they are judged by. OSError: they are not known.
    """
    listed: list[Ancestor] = []
    parent = int((read_status(pid, ("PPid",), proc) or {}).get("PPid", "0"))
    while parent > 1 and len(listed) < MAX_ANCESTORS:
        fields = read_status(parent, _OF_ANCESTORS, proc) if owner in (read_owners(parent, proc) or ()) else None
        if fields is None:
            break
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


def caught_signals(status: Mapping[str, str]) -> int:
    """The mask, of the fields of /proc/PID/status, of the signals with a handler of the process' own (SigCgt)."""
    return int(status.get("SigCgt", "0"), 16)


def _has(mask: int, number: int) -> bool:
    return bool(mask >> (number - 1) & 1)


def _ancestor(pid: int, status: Mapping[str, str], number: int) -> Ancestor:
    def has(mask: str) -> bool:
        return _has(int(status.get(mask, "0"), 16), number)

    inside = status.get("NSpid", "").split()
    return Ancestor(pid, has("SigCgt") or has("SigBlk"), has("SigIgn"), inside[-1:] == ["1"])
