"""Whose a process is and how it dies, from /proc. Parsing is pure; `proc` is the only thing read.

Covers cgroup v1 and v2, the cgroupfs and systemd drivers, containerd, CRI-O and Docker, any cgroup root before
`kubepods` and paths seen from inside a cgroup namespace. A process that left its pod's cgroup is nobody's. A process
gives itself its name, of any bytes: none of them is an error, and of those that could end a line the kernel escapes the
newline alone.
"""

import re
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

_UID = r"(?P<uid>[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})"
"""The 32 digits are a static pod's. systemd's slices cannot hold a `-`, so the kubelet writes `_`."""
_POD = re.compile(rf"^(?:(?:[^/]*-)?kubepods(?:-besteffort|-burstable)?-)?pod{_UID}(?:\.slice)?$")
_CONTAINER = re.compile(r"^(?:cri-containerd-|crio-|docker-)?(?P<id>[0-9a-f]{64})(?:\.scope)?$")
_SIGTERM_BIT = 1 << (signal.SIGTERM - 1)
_START_TIME = 22
"""Field number in /proc/PID/stat (proc(5)), counted from 1."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The pod and container of a process; `container_id` is the runtime's, empty when the path does not tell."""

    pod_uid: str
    container_id: str


class ProcessIdentity(Protocol):
    """A process, told from a later one of its PID by its start time, in clock ticks since boot."""

    @property
    def pid(self) -> int: ...

    @property
    def started(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Process:
    """A process as it was when read. `started`, in clock ticks since boot, tells it from a later one of its PID."""

    pid: int
    started: int
    catches_sigterm: bool
    owner: Owner | None


def owner_of(cgroup: str) -> Owner | None:
    """From the text of /proc/PID/cgroup; None: no pod's process. The innermost pod, where a cluster runs in one."""
    owners = owners_of(cgroup)
    return owners[-1] if owners else None


def owners_of(cgroup: str) -> tuple[Owner, ...]:
    """Every pod that the path names, the outermost first: more than one where a cluster runs in a pod, or where a
    container makes cgroups of its own."""
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


def _container(parts: list[str]) -> str:
    for part in parts:
        if found := _CONTAINER.match(part):
            return found["id"]
    return ""


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


def text_of(file: Path) -> str:
    """A file of /proc, of whatever bytes; not by text mode, which makes lines of carriage returns. OSError: gone."""
    return file.read_bytes().decode(errors="replace")


def read_start_time(pid: int, proc: Path = Path("/proc")) -> int | None:
    """None: there is no such process (any more)."""
    try:
        return start_time(text_of(proc / str(pid) / "stat"))
    except OSError:
        return None


def read_all(pids: Iterable[int], proc: Path) -> list[Process]:
    """Those of `pids` that there are."""
    found = (read(pid, proc) for pid in pids)
    return [process for process in found if process is not None]


def read(pid: int, proc: Path = Path("/proc")) -> Process | None:
    """None: there is no such process (any more)."""
    directory = proc / str(pid)
    try:
        started = start_time(text_of(directory / "stat"))
        caught = catches_sigterm(text_of(directory / "status"))
        owner = owner_of(text_of(directory / "cgroup"))
    except OSError:
        return None
    return Process(pid, started, caught, owner)
