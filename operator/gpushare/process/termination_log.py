"""Which container of its pod a process is in, by a mount that the kubelet made for that container alone.

The kubelet mounts `pods/UID/containers/NAME/…`, the file for its termination message, into each container before it
starts, long before the pod's status shows the container's id. Where in the container, the pod says; which file it is,
the kernel does: /proc/PID/mountinfo has the file system's number, and the path within it that was mounted.

Guarantees: only a file in that directory of the kubelet's, on its file system, names a container. A container gets no
mount of another one's file: none of its volumes reaches that directory, but by a hostPath to it. Mounts of a process's
own, in a namespace that it made, show what they are of just as well. A process that sees none, as by another root, or
several, is in no container that is known here.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from gpushare.process.bounded_read import lines
from gpushare.process.procfs import PROC, Owner, read_owners

MAX_MOUNTINFO_BYTES = 64 * 1024
"""Some 300 mounts, six times what a container with a GPU has. Of one that has more nothing is known here."""
DEFAULT_PATH = b"/dev/termination-log"
_FILE = re.compile(rb"(?P<pods>/(?:.*/)?pods/)[^/]+/containers/[^/]+/[^/]+")


@dataclass(frozen=True, slots=True)
class PodsDirectory:
    """The kubelet's directory of pods, as mountinfo shows what is mounted from it. `device`: major:minor. `path`: in
    that file system, with a slash at its end.
    """

    device: bytes
    path: bytes


def pods_directory(own_mountinfo: Iterable[bytes]) -> PodsDirectory | None:
    """From the mounts of a container of ours, whose path for its message is the default; None: it has none."""
    for device, root, point in _mounts(own_mountinfo):
        if point == DEFAULT_PATH and (match := _FILE.fullmatch(root)):
            return PodsDirectory(device, match["pods"])
    return None


def named_container(mountinfo: Iterable[bytes], pods: PodsDirectory, pod_uid: str) -> str:
    """The container of that pod whose file is mounted; empty: none, or more than one."""
    directory = pods.path + pod_uid.encode() + b"/containers/"
    files = [
        root.removeprefix(directory).split(b"/")
        for device, root, _ in _mounts(mountinfo)
        if device == pods.device and root.startswith(directory)
    ]
    names = {name.decode(errors="replace") for name, *rest in files if len(rest) == 1}
    return names.pop() if len(names) == 1 else ""


def read_container(pid: int, pod_uid: str, proc: Path = PROC, pods: PodsDirectory | None = None) -> str:
    """The name of the container of a process of that pod; empty: it is not known. Blocks for less than a
    millisecond. `pods`: those of our own mounts, where it is None."""
    pods = pods or own_pods_directory()
    if pods is None:
        return ""
    try:
        return named_container(lines(proc / str(pid) / "mountinfo", MAX_MOUNTINFO_BYTES), pods, pod_uid)
    except OSError:
        return ""


def read_named_owners(pid: int, proc: Path = PROC, pods: PodsDirectory | None = None) -> tuple[Owner, ...] | None:
    """As `read_owners`, each with the name of the process's container in that pod, as far as that is known."""
    owners = read_owners(pid, proc)
    return owners and tuple(
        replace(owner, container=read_container(pid, owner.pod_uid, proc, pods)) for owner in owners
    )


@cache
def own_pods_directory() -> PodsDirectory | None:
    try:
        return pods_directory(lines(PROC / "self/mountinfo"))
    except OSError:
        return None


def _mounts(mountinfo: Iterable[bytes]) -> Iterator[tuple[bytes, bytes, bytes]]:
    """(device, path in its file system, where it is mounted): proc(5)."""
    for line in mountinfo:
        fields = line.split(b" ", 5)
        if len(fields) > 5:
            yield fields[2], fields[3], fields[4]
