"""Processes as /proc shows them: whose they are, and which of them a signal ends.

Covers cgroup v1 and v2, the cgroupfs and systemd drivers, containerd, CRI-O and Docker, any cgroup root before
`kubepods` and paths seen from inside a cgroup namespace. A process that left its pod's cgroup belongs to no pod.

Guarantees: no name of a process is an error, although a process chooses its name freely, of any bytes; of the bytes
that could end a line the kernel escapes the newline alone, so files are not read in text mode. Nothing but `proc` is
read.
"""

import re
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

PROC = Path("/proc")
MAX_ANCESTORS = 32
MAX_COMMAND_BYTES = 4096

_UID = r"(?P<uid>[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})"
"""The 32 digits are a static pod's. systemd's slices cannot hold a `-`, so the kubelet writes `_`."""
_POD = re.compile(rf"^(?:(?:[^/]*-)?kubepods(?:-besteffort|-burstable)?-)?pod{_UID}(?:\.slice)?$")
_CONTAINER = re.compile(r"^(?:cri-containerd-|crio-|docker-)?(?P<id>[0-9a-f]{64})(?:\.scope)?$")
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


def is_alive(process: ProcessIdentity, proc: Path = PROC) -> bool:
    """Whether this very process still has an entry in /proc."""
    return read_start_time(process.pid, proc) == process.started


def read(pid: int, proc: Path = PROC) -> Process | None:
    """None: there is no such process (any more)."""
    directory = proc / str(pid)
    try:
        started = start_time(read_text(directory / "stat"))
        caught = caught_signals(read_text(directory / "status"))
        owners = owners_of(read_text(directory / "cgroup"))
    except OSError:
        return None
    return Process(pid, started, caught, owners)


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


def read_words(pid: int, proc: Path = PROC) -> list[str]:
    """The beginning of its command line, of up to MAX_COMMAND_BYTES: a process may have megabytes of it. OSError: it is
    gone.
    """
    with (proc / str(pid) / "cmdline").open("rb") as file:
        return [word.decode(errors="replace") for word in file.read(MAX_COMMAND_BYTES).split(b"\0") if word]


def read_text(file: Path) -> str:
    """A file of /proc, of any bytes; text mode would end lines at carriage returns too. OSError: it is gone."""
    return file.read_bytes().decode(errors="replace")


def ancestors(pid: int, owner: Owner, number: int, proc: Path = PROC) -> list[Ancestor]:
    """Of a process, within its own container, the parent first. One that has ended meanwhile ends the list.

    `number`: the signal that they are judged by.
    """
    found: list[Ancestor] = []
    parent = _parent(pid, proc)
    while parent > 1 and len(found) < MAX_ANCESTORS:
        try:
            if owner not in owners_of(read_text(proc / str(parent) / "cgroup")):
                break
            status = read_text(proc / str(parent) / "status")
        except OSError:
            break
        fields = dict(line.split(":", 1) for line in status.split("\n") if ":" in line)
        found.append(_ancestor(parent, fields, number))
        parent = int(fields.get("PPid", "0"))
    return found


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
    return next((one.pid for one in ancestors if not one.acts and not one.ignores), None)


def owner_among(owners: Sequence[Owner], pods: Container[str]) -> Owner | None:
    """The outermost of `owners` whose pod's uid is among `pods`; None: there is none.

    A cgroup further in can be made by anybody who may write cgroups inside a container; one further out is the node
    itself, if a cluster runs in the pods of another.
    """
    return next((owner for owner in owners if owner.pod_uid in pods), None)


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


def caught_signals(status: str) -> int:
    """From the text of /proc/PID/status: the mask of the signals with a handler of the process' own (SigCgt)."""
    for line in status.split("\n"):
        if line.startswith("SigCgt:"):
            return int(line.removeprefix("SigCgt:"), 16)
    return 0


def start_time(stat: str) -> int:
    """From the text of /proc/PID/stat: clock ticks since boot. The command in it may hold blanks and brackets."""
    fields = stat.rpartition(")")[2].split()
    return int(fields[_START_TIME - 3])


def _container(parts: list[str]) -> str:
    for part in parts:
        if found := _CONTAINER.match(part):
            return found["id"]
    return ""


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
