"""What /proc says about a process: whose it is, and when it started.

Covers cgroup v1 and v2, the cgroupfs and systemd drivers, containerd, CRI-O and Docker, any cgroup root before
`kubepods` and paths seen from inside a cgroup namespace. A process that left its pod's cgroup belongs to no pod.

Guarantees: no name of a process is an error, although a process chooses its name freely, of any bytes; of the bytes
that could end a line the kernel escapes the newline alone, so files are not read in text mode. What a function returns
as None is gone; an OSError is of a process that may well run, and of which nothing is known.
"""

import os
import re
from collections.abc import Collection, Container, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpushare.process.bounded_read import GONE, read_start, read_text

PROC = Path("/proc")

_UID = r"(?P<uid>[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})"
"""The 32 digits are a static pod's. systemd's slices cannot hold a `-`, so the kubelet writes `_`."""
_POD = re.compile(rf"^(?:(?:[^/]*-)?kubepods(?:-besteffort|-burstable)?-)?pod{_UID}(?:\.slice)?$")
_CONTAINER = re.compile(r"^(?:cri-containerd-|crio-|docker-)?(?P<id>[0-9a-f]{64})(?:\.scope)?$")
MAX_ENVIRONMENT_BYTES = 4 * 1024 * 1024
"""More than the kernel gives a program with the usual limit of its stack."""
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_STATE, _THREADS, _START_TIME = 3, 20, 22
"""Field numbers in /proc/PID/stat (proc(5)), counted from 1."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The pod and container of a process, by its cgroup. `container_id`: the runtime's; empty if the path has none.

    `container`: its name, where its mounts were asked for it (`termination_log`) and tell.
    """

    pod_uid: str
    container_id: str
    container: str = field(default="", compare=False)


def read_start_time(pid: int, proc: Path = PROC) -> int | None:
    """Clock ticks since boot. None: there is no such process (any more). OSError: that is not known."""
    try:
        return start_time(read_text(proc / str(pid) / "stat"))
    except GONE:
        return None


def read_start_of_running(pid: int, proc: Path = PROC) -> int | None:
    """The same as `read_start_time`, and None for a process that has ended and that its parent has not waited for."""
    try:
        stat = read_text(proc / str(pid) / "stat")
    except GONE:
        return None
    # A process whose first thread alone has ended is shown as Z, too, and runs.
    ended = _field(stat, _STATE) in "ZX" and int(_field(stat, _THREADS)) <= 1
    return None if ended else start_time(stat)


def read_owners(pid: int, proc: Path = PROC) -> tuple[Owner, ...] | None:
    """The same as `owners_of`. None: there is no such process (any more). OSError: that is not known."""
    try:
        return owners_of(read_text(proc / str(pid) / "cgroup"))
    except GONE:
        return None


def read_environment(pid: int, wanted: Collection[str], proc: Path = PROC) -> dict[str, str] | None:
    """The variables with the `wanted` names that the process was started with; of a name that stands twice the first,
    as getenv(3) has it. None: it has ended, or may not be read. Blocks while the process' memory is locked.
    """
    try:
        content = read_start(proc / str(pid) / "environ", MAX_ENVIRONMENT_BYTES)
    except OSError:
        return None
    environment: dict[str, str] = {}
    for item in content.split(b"\0"):
        name, separator, value = item.decode(errors="replace").partition("=")
        if separator and name in wanted:
            environment.setdefault(name, value)
    return environment


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


def owner_among(owners: Sequence[Owner], pods: Container[str]) -> Owner | None:
    """The outermost of `owners` whose pod's uid is among `pods`; None: there is none.

    A cgroup further in can be made by anybody who may write cgroups inside a container; one further out is the node
    itself, if a cluster runs in the pods of another.
    """
    return next((owner for owner in owners if owner.pod_uid in pods), None)


def within_cluster(owners: Sequence[Owner], own: Sequence[Owner]) -> tuple[Owner, ...]:
    """`owners` without the pods that this cluster itself runs in: all but the last of `own`, those of our own process.

    The first that is left is the node's kubelet's word; those further in may be anybody's. From inside a cgroup
    namespace neither is shown with the pods around the cluster. Empty for a process outside of it.
    """
    around = tuple(own[:-1])
    return tuple(owners[len(around) :]) if tuple(owners[: len(around)]) == around else ()


def start_time(stat: str) -> int:
    """The start in the text of /proc/PID/stat: clock ticks since boot. The command in it may hold blanks and
    brackets."""
    return int(_field(stat, _START_TIME))


def _field(stat: str, number: int) -> str:
    return stat.rpartition(")")[2].split()[number - _STATE]


def _container(parts: list[str]) -> str:
    for part in parts:
        if match := _CONTAINER.match(part):
            return match["id"]
    return ""
