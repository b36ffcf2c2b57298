"""Which running containers with a slot were started without the mount that goes with it, whether they use a GPU or not.

A runtime that knows no CDI drops the device silently. The container then finds no GPU at all, so NVML never shows it.

Guarantees: what a container has mounted is settled when it starts, so /proc is searched once for each start; of a
container without the mount only one process is read again. Nothing is reported of a container whose processes cannot be
seen from here, such as one in a virtual machine.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpushare.agent.podresources.holdings import ContainerName, ShareGpu
from gpushare.agent.process import processes
from gpushare.api import names
from gpushare.api.gpunode import Uuid
from gpushare.kube.client import Object
from gpushare.kube.pods import container_id, container_statuses, is_running
from gpushare.process import procfs
from gpushare.process.procfs import Owner

RETRY_SECONDS = 30.0
"""A container of which no process was found is searched for again after this time."""


@dataclass(frozen=True, slots=True)
class SlotContainer:
    """A running container with a slot of the GPU. `container_id`: the runtime's."""

    uuid: Uuid
    container_id: str


@dataclass(frozen=True, slots=True)
class ContainerProcess:
    """`started`: clock ticks since boot. `owners`: its pods by its cgroup, the outermost first."""

    pid: int
    started: int
    owners: tuple[Owner, ...]


def running_containers(pods: Iterable[Object], places: Mapping[ContainerName, ShareGpu]) -> Iterator[SlotContainer]:
    """Pure. `places`: where the containers' slots are, by the kubelet."""
    for pod in pods:
        namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        for status in container_statuses(pod):
            place = places.get((namespace, name, status["name"]))
            if place is not None and container_id(status) and is_running(status):
                yield SlotContainer(place[1], container_id(status))


@dataclass(frozen=True, slots=True)
class _Check:
    """`has_process`: a process of the container was read. `unmounted`: its first one, if none of them has the mount."""

    at: float
    has_process: bool = False
    unmounted: ContainerProcess | None = None


class MountChecker:
    def __init__(self, clock: Callable[[], float], proc: Path) -> None:
        """`clock`: seconds, monotonic."""
        self._clock = clock
        self._proc = proc
        self._checks: dict[str, _Check] = {}
        """The checks by container id."""

    def unmounted(self, containers: Collection[SlotContainer]) -> dict[Uuid, list[ContainerProcess]]:
        """The first process of each container without the mount, by GPU. Blocks."""
        ids = {container.container_id for container in containers}
        before = {container_id: check for container_id, check in self._checks.items() if container_id in ids}
        unsettled = {container_id for container_id in ids if not self._is_settled(before.get(container_id))}
        self._checks = before | (self._check(unsettled) if unsettled else {})
        without_mount: dict[Uuid, list[ContainerProcess]] = {}
        for container in containers:
            if (process := self._checks[container.container_id].unmounted) is not None:
                without_mount.setdefault(container.uuid, []).append(process)
        return without_mount

    def was_mounted(self, container_id: str) -> bool:
        """Whether the container was started with the mount: what a process of it sees now may be of its own making."""
        check = self._checks.get(container_id)
        return check is not None and check.has_process and check.unmounted is None

    def _is_settled(self, check: _Check | None) -> bool:
        if check is None:
            return False
        if check.unmounted is not None:
            return processes.is_alive(check.unmounted, self._proc) and self._has_mount(check.unmounted) is False
        return check.has_process or self._clock() - check.at < RETRY_SECONDS

    def _check(self, container_ids: Collection[str]) -> dict[str, _Check]:
        now = self._clock()
        members: dict[str, list[ContainerProcess]] = {container_id: [] for container_id in container_ids}
        for process in self._container_processes():
            for owner in process.owners:
                if owner.container_id in members:
                    members[owner.container_id].append(process)
        return {container_id: self._judge(of_container, now) for container_id, of_container in members.items()}

    def _judge(self, members: list[ContainerProcess], now: float) -> _Check:
        """One with the mount is enough: others may have mounts of their own, or an exec may just be adding them."""
        read = [(process, mounted) for process in members if (mounted := self._has_mount(process)) is not None]
        if not read or any(mounted for _, mounted in read):
            return _Check(now, bool(read))
        return _Check(now, True, min((process for process, _ in read), key=lambda process: process.started))

    def _container_processes(self) -> Iterator[ContainerProcess]:
        for pid in (int(entry.name) for entry in self._proc.iterdir() if entry.name.isdigit()):
            owners = procfs.read_owners(pid, self._proc)
            started = procfs.read_start_time(pid, self._proc) if owners else None
            if owners and started is not None:
                yield ContainerProcess(pid, started, owners)

    def _has_mount(self, process: ContainerProcess) -> bool | None:
        """Whether the process has the mount; None: it has ended."""
        return processes.read_has_mount(process.pid, names.CLIENT_PIPE_DIR, self._proc)
