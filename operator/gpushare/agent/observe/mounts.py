"""Which running containers with a slot were started without the mount that goes with it, whether they use a GPU or not.

A runtime that knows no CDI drops the device silently. The container then finds no GPU at all, so NVML never shows it.

Guarantees: what a process sees that made mounts of its own, or has another root, proves nothing about its container: a
container is called one without its mount by the mount namespace that the runtime made (`process/namespaces.py`), seen
from the root that the runtime gave it. What a container has mounted is settled when it starts, so /proc is searched
once for each start; of a container without the mount only one process is read again. Of a container with many mounts
no more is read than the bounds allow, whatever becomes known by that: it then has a sentence that names file and bound.
Nothing is reported of a container whose processes cannot be seen from here, such as one in a virtual machine.
"""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpushare.agent.gpus.fronts import CLASSES
from gpushare.agent.podresources.holdings import ContainerName, ShareGpu
from gpushare.agent.process import processes
from gpushare.agent.process.namespaces import read_mount_depth
from gpushare.api import names
from gpushare.api.gpunode import Uuid
from gpushare.kube.client import Object
from gpushare.kube.pods import container_id, container_statuses, is_running
from gpushare.process import procfs
from gpushare.process.bounded_read import GONE, is_overdue, lines, numbered_entries, reading_until
from gpushare.process.procfs import Owner

RETRY_SECONDS = 30.0
"""A container of which no process was found, or none that proves anything, is searched for again after this time."""
MAX_MOUNTINFO_BYTES = 1024 * 1024
"""Some 4,000 mounts. The kernel makes the text as it is read; 65,536 mounts, as many as a namespace may have, are 476
MiB and 50 s of its time.
"""
CONTAINER_SECONDS = 0.5
"""The time for all processes of one container."""
DELETED = b"//deleted"
"""What the kernel appends to the root of a mount whose file was removed since."""
MAX_PROCESSES = 8
"""The processes of a container that are looked at, the oldest first."""


@dataclass(frozen=True, slots=True)
class SlotContainer:
    """A running container with a slot of the GPU. `container_id`: the runtime's. `own_users`: its pod has a user
    namespace of its own.
    """

    uuid: Uuid
    container_id: str
    own_users: bool = False


@dataclass(frozen=True, slots=True)
class ContainerProcess:
    """`started`: clock ticks since boot. `owners`: its pods by its cgroup, the outermost first."""

    pid: int
    started: int
    owners: tuple[Owner, ...]


@dataclass(frozen=True, slots=True)
class SeenMounts:
    """What a process sees. `rooted`: from the root that the runtime gave to its container. `depth`: see
    `read_mount_depth`; None: that may not be looked at. `problem`: why its mounts are not known, with file and bound.
    """

    process: ContainerProcess
    has_mount: bool = False
    rooted: bool = False
    depth: int | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Start:
    """How a container was started, as far as its processes prove it. Neither `mounted` nor `lacking` is set where none
    was seen. `lacking`: one that is without the mount, or of which that is not known: then `problem` says why.
    `own_view`: since all that were read made a mount namespace or a root of their own.
    """

    mounted: bool = False
    lacking: ContainerProcess | None = None
    problem: str = ""
    own_view: bool = False


def running_containers(pods: Iterable[Object], places: Mapping[ContainerName, ShareGpu]) -> Iterator[SlotContainer]:
    """Pure. `places`: where the containers' slots are, by the kubelet."""
    for pod in pods:
        namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        own_users = (pod.get("spec") or {}).get("hostUsers") is False
        for status in container_statuses(pod):
            place = places.get((namespace, name, status["name"]))
            if place is not None and container_id(status) and is_running(status):
                yield SlotContainer(place[1], container_id(status), own_users)


def scan(mountinfo: Iterable[bytes], path: str) -> tuple[bool, bool]:
    """(whether something is mounted at `path`, whether the runtime's root is seen), from the lines of
    /proc/PID/mountinfo (proc(5)) up to the one that decides. Pure.

    mountinfo has the mounts below a process' root alone. That is the runtime's if it has the procfs at /proc, since a
    process cannot mount one elsewhere but in a mount namespace of its own.
    """
    rooted = False
    for line in mountinfo:
        fields = line.split(b" ", 5)
        point = fields[4] if len(fields) > 5 else b""
        if point == path.encode():
            return True, rooted
        rooted = rooted or (point == b"/proc" and line.partition(b" - ")[2].startswith(b"proc "))
    return False, rooted


def sees_class_library(pid: int, proc: Path) -> bool:
    """Whether a process sees the front library by which a client has a class, so that its container was started with
    it. The other front of the driver's library, which shows the grant, has the same name in the container. In doubt it
    does not.
    """
    ending = f"/{CLASSES}".encode()
    try:
        mountinfo = lines(proc / str(pid) / "mountinfo", MAX_MOUNTINFO_BYTES)
        return any(
            fields[3].removesuffix(DELETED).endswith(ending)
            for line in mountinfo
            if len(fields := line.split(b" ", 5)) > 5
        )
    except OSError:
        return False


def lacking_class_library(
    silent: Iterable[processes.Identity], proc: Path, seconds: float = CONTAINER_SECONDS
) -> frozenset[processes.Identity]:
    """Those of which it is not known that they see it; all of them share the time of one container. Blocks."""
    with reading_until(time.monotonic() + seconds):
        return frozenset(process for process in silent if not sees_class_library(process[0], proc))


def start_of(seen: Sequence[SeenMounts], own_users: bool, others_mounted: bool) -> Start:
    """What the processes of one container prove, the oldest first. Pure.

    One with the mount is enough: who mounts it for itself gains nothing by it. `others_mounted`: whether a container of
    the node has its mount, so that CDI is on; it decides where namespaces may not be looked at.
    """
    if not seen:
        return Start()
    if any(item.has_mount for item in seen):
        return Start(mounted=True)
    own_views = [_own_view(item, own_users) for item in seen]
    rest = [item for item, own in zip(seen, own_views, strict=True) if not own]
    if not rest:
        return Start(lacking=seen[0].process, problem=own_views[0], own_view=True)
    proven = next((item for item in rest if not _unproven(item, others_mounted)), None)
    if proven is not None:
        return Start(lacking=proven.process)
    return Start(lacking=rest[0].process, problem=_unproven(rest[0], others_mounted))


def _own_view(seen: SeenMounts, own_users: bool) -> str:
    """How the process came to see something else than the runtime made; empty: it did not, as far as is known."""
    if seen.depth is not None and seen.depth != int(own_users):
        bound = f" ({seen.problem})" if seen.problem else ""
        return f"process {seen.process.pid} is in a mount namespace that the container's runtime did not make{bound}"
    if not seen.rooted and not seen.problem:
        return f"process {seen.process.pid} has another root than the one that the container's runtime made"
    return ""


def _unproven(seen: SeenMounts, others_mounted: bool) -> str:
    """Why it is not known whether the process' container was started with the mount; empty: it was not."""
    if seen.depth is None and others_mounted and not seen.problem:
        return f"process {seen.process.pid} does not see them, and who made its mount namespace may not be looked at"
    return seen.problem


@dataclass(frozen=True, slots=True)
class _Check:
    """`begun`: when the container's oldest process started, in clock ticks since boot. `pre_stop`: whether it has the
    program of preStop hooks; None: that is not known.
    """

    at: float
    start: Start
    begun: int = 0
    pre_stop: bool | None = None


@dataclass(slots=True)
class _Members:
    own_users: bool
    processes: list[ContainerProcess] = field(default_factory=list)

    def oldest(self) -> list[ContainerProcess]:
        return sorted(self.processes, key=lambda process: (process.started, process.pid))[:MAX_PROCESSES]


class MountChecker:
    def __init__(
        self,
        clock: Callable[[], float],
        proc: Path,
        read_depth: Callable[[int, Path], int | None] = read_mount_depth,
    ) -> None:
        """`clock`: seconds, monotonic."""
        self._clock = clock
        self._proc = proc
        self._read_depth = read_depth
        self._checks: dict[str, _Check] = {}
        """The checks by container id."""

    @property
    def any_mounted(self) -> bool:
        """Whether a container has its mount: CDI is on in the node's runtime, or was when that container started."""
        return any(check.start.mounted for check in list(self._checks.values()))

    def unmounted(self, containers: Collection[SlotContainer]) -> dict[Uuid, list[Start]]:
        """The containers without the mount, and those of which that is not known, by GPU. Blocks. OSError: /proc cannot
        be searched in time; what became known until then stays.
        """
        ids = {container.container_id: container.own_users for container in containers}
        self._checks = {key: check for key, check in self._checks.items() if key in ids}
        unsettled = {key: users for key, users in ids.items() if not self._is_settled(self._checks.get(key))}
        if unsettled:
            self._check(unsettled)
        without_mount: dict[Uuid, list[Start]] = {}
        for container in containers:
            if (start := self._checks[container.container_id].start).lacking is not None:
                without_mount.setdefault(container.uuid, []).append(start)
        return without_mount

    def pre_stop_mounted(self) -> bool | None:
        """Whether the container that was started last has the program of preStop hooks; None: no container tells."""
        known = [check for check in list(self._checks.values()) if check.pre_stop is not None]
        return max(known, key=lambda check: check.begun).pre_stop if known else None

    def start_of(self, process: ContainerProcess) -> Start:
        """How the container of a process was started; by this process alone if no search has found its container yet.
        Blocks.
        """
        for owner in process.owners:
            check = self._checks.get(owner.container_id)
            if check is not None and (check.start.mounted or check.start.lacking is not None):
                return check.start
        return self._start([process], own_users=False)

    def _is_settled(self, check: _Check | None) -> bool:
        if check is None:
            return False
        start = check.start
        if start.mounted:
            return True
        if start.lacking is None or start.problem:
            return self._clock() - check.at < RETRY_SECONDS
        if not processes.is_alive(start.lacking, self._proc):
            return False
        seen = self._see(start.lacking)
        return seen is not None and not seen.has_mount

    def _check(self, container_ids: Mapping[str, bool]) -> None:
        members = {key: _Members(own_users) for key, own_users in container_ids.items()}
        for process in self._container_processes():
            for owner in process.owners:
                if owner.container_id in members:
                    members[owner.container_id].processes.append(process)
        # Those without the mount last: whether others have it may decide.
        for key in sorted(members, key=lambda key: (key in self._checks, key)):
            oldest, own_users = members[key].oldest(), members[key].own_users
            start = self._start(oldest, own_users)
            begun = oldest[0].started if oldest else 0
            self._checks[key] = _Check(self._clock(), start, begun, self._has_pre_stop(oldest, own_users))

    def _start(self, oldest: Sequence[ContainerProcess], own_users: bool) -> Start:
        """OSError: the time for all is over."""
        seen: list[SeenMounts] = []
        with reading_until(time.monotonic() + CONTAINER_SECONDS):
            for process in oldest:
                if (item := self._see(process)) is not None:
                    seen.append(item)
                    if item.has_mount:
                        break
        if is_overdue():
            raise TimeoutError("the mounts of containers are not known: the time for it is over")
        return start_of(seen, own_users, self.any_mounted)

    def _has_pre_stop(self, oldest: Sequence[ContainerProcess], own_users: bool) -> bool | None:
        """Whether the container has the program of preStop hooks, by its oldest process that proves it."""
        with reading_until(time.monotonic() + CONTAINER_SECONDS):
            for process in oldest:
                if (told := self._sees_pre_stop(process, own_users)) is not None:
                    return told
        return None

    def _sees_pre_stop(self, process: ContainerProcess, own_users: bool) -> bool | None:
        """None: the process has ended, or does not see it in mounts that the runtime may not have made."""
        try:
            mountinfo = lines(self._proc / str(process.pid) / "mountinfo", MAX_MOUNTINFO_BYTES)
            has_program, rooted = scan(mountinfo, names.PRE_STOP_PROGRAM)
            if has_program:
                return True
            return False if rooted and self._read_depth(process.pid, self._proc) == int(own_users) else None
        except OSError:
            return None

    def _container_processes(self) -> Iterator[ContainerProcess]:
        for pid in numbered_entries(self._proc):
            try:
                owners = procfs.read_owners(pid, self._proc)
                started = procfs.read_start_time(pid, self._proc) if owners else None
            except OSError:
                if is_overdue():
                    raise
                continue
            if owners and started is not None:
                yield ContainerProcess(pid, started, owners)

    def _see(self, process: ContainerProcess) -> SeenMounts | None:
        """What the process sees; None: it has ended."""
        problem, has_mount, rooted = "", False, False
        path = self._proc / str(process.pid) / "mountinfo"
        try:
            has_mount, rooted = scan(lines(path, MAX_MOUNTINFO_BYTES), names.CLIENT_PIPE_DIR)
        except GONE:
            return None
        except OSError as error:
            problem = f"{path}: {error.strerror or error}"
        depth = None
        if not has_mount:
            try:
                depth = self._read_depth(process.pid, self._proc)
            except OSError:
                return SeenMounts(process, has_mount, rooted, None, problem)
            if depth is None:
                return None
        return SeenMounts(process, has_mount, rooted, depth, problem)
