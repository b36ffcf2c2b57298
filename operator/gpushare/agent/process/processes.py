"""Processes as /proc shows them: whose they are, and how SIGTERM ends them.

Covers cgroup v1 and v2, the cgroupfs and systemd drivers, containerd, CRI-O and Docker, any cgroup root before
`kubepods` and paths seen from inside a cgroup namespace. A process that left its pod's cgroup belongs to no pod.

Guarantees: no name of a process is an error, although a process chooses its name freely, of any bytes; of the bytes
that could end a line the kernel escapes the newline alone, so files are not read in text mode. Nothing but `proc` is
read.
"""

import re
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

PROC = Path("/proc")
MAX_ANCESTORS = 32

_UID = r"(?P<uid>[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})"
"""The 32 digits are a static pod's. systemd's slices cannot hold a `-`, so the kubelet writes `_`."""
_POD = re.compile(rf"^(?:(?:[^/]*-)?kubepods(?:-besteffort|-burstable)?-)?pod{_UID}(?:\.slice)?$")
_CONTAINER = re.compile(r"^(?:cri-containerd-|crio-|docker-)?(?P<id>[0-9a-f]{64})(?:\.scope)?$")
_SIGTERM_BIT = 1 << (signal.SIGTERM - 1)
_START_TIME = 22
"""Field number in /proc/PID/stat (proc(5)), counted from 1."""

Identity = tuple[int, int]
"""(PID, start time in clock ticks since boot): no later process of the same PID has it."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The pod and container of a process, by its cgroup. `container_id`: the runtime's; empty if the path has none."""

    pod_uid: str
    container_id: str


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


def read_start_time(pid: int, proc: Path = PROC) -> int | None:
    """Clock ticks since boot. None: there is no such process (any more)."""
    try:
        return start_time(read_text(proc / str(pid) / "stat"))
    except OSError:
        return None


def read_owners(pid: int, proc: Path = PROC) -> tuple[Owner, ...] | None:
    """As `owners_of`. None: there is no such process (any more)."""
    try:
        return owners_of(read_text(proc / str(pid) / "cgroup"))
    except OSError:
        return None


def read_has_mount(pid: int, path: str, proc: Path = PROC) -> bool | None:
    """Whether the process sees a mount at `path`. None: there is no such process (any more)."""
    try:
        return has_mount(read_text(proc / str(pid) / "mountinfo"), path)
    except OSError:
        return None


def read_text(file: Path) -> str:
    """A file of /proc, of any bytes; text mode would end lines at carriage returns too. OSError: it is gone."""
    return file.read_bytes().decode(errors="replace")


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


def owner_of(cgroup: str) -> Owner | None:
    """From the text of /proc/PID/cgroup. The innermost pod, where a cluster runs in one. None: no pod's process."""
    owners = owners_of(cgroup)
    return owners[-1] if owners else None


def owners_of(cgroup: str) -> tuple[Owner, ...]:
    """Every pod that the path names, the outermost first.

    More than one if a cluster runs in a pod, or if a container makes cgroups of its own.
    """
    for line in cgroup.split("\n"):
        path = line.partition(":")[2].partition(":")[2]
        # containerd under a kubelet that uses the other cgroup driver joins slice and container by colons.
        parts = re.split("[/:]", path)
        pods = [(position, pod) for position, part in enumerate(parts) if (pod := _POD.match(part))]
        if pods:
            ends = [position for position, _ in pods[1:]] + [len(parts)]
            return tuple(
                Owner(pod["uid"].replace("_", "-"), _container(parts[position + 1 : end]))
                for (position, pod), end in zip(pods, ends, strict=True)
            )
    return ()


def has_mount(mountinfo: str, path: str) -> bool:
    """From the text of /proc/PID/mountinfo (proc(5)): whether something is mounted at `path`."""
    return any(line.split(" ")[4:5] == [path] for line in mountinfo.split("\n"))


def catches_sigterm(status: str) -> bool:
    """From the text of /proc/PID/status: whether the process has a handler of its own for SIGTERM (SigCgt)."""
    for line in status.split("\n"):
        if line.startswith("SigCgt:"):
            return bool(int(line.removeprefix("SigCgt:"), 16) & _SIGTERM_BIT)
    return False


def start_time(stat: str) -> int:
    """From the text of /proc/PID/stat: clock ticks since boot. The command in it may hold blanks and brackets."""
    fields = stat.rpartition(")")[2].split()
    return int(fields[_START_TIME - 3])


def _container(parts: list[str]) -> str:
    for part in parts:
        if found := _CONTAINER.match(part):
            return found["id"]
    return ""


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
