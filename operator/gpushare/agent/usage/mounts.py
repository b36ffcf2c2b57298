"""Which running containers with a slot were started without the mount that goes with it, whether they use a GPU or not.

A runtime that knows no CDI drops the device without a word, and the container then finds no GPU at all, so NVML never
shows it. What a container has mounted is settled when it starts, so /proc is gone through once for each start, and for
one whose mount is missing only its process is looked at again. Nothing is told of a container whose processes are not
to be seen here, such as one in a virtual machine.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpushare.agent.kubelet.holdings import ContainerName, ShareGpu
from gpushare.agent.process import processes
from gpushare.agent.usage.usage import STATUSES, Listed
from gpushare.api import names
from gpushare.api.gpunode import Uuid
from gpushare.kube.client import Object

RETRY_SECONDS = 30.0
"""Where no process of a container was found, they are looked for again so late."""


@dataclass(frozen=True, slots=True)
class Started:
    """A running container with a slot of the GPU. `container_id` is the runtime's."""

    uuid: Uuid
    container_id: str


def started(pods: Iterable[Object], places: Mapping[ContainerName, ShareGpu]) -> Iterator[Started]:
    """Pure. `places`: whose slots are where, by the kubelet."""
    for pod in pods:
        whose = (pod["metadata"]["namespace"], pod["metadata"]["name"])
        for status in (item for kind in STATUSES for item in pod.get("status", {}).get(kind) or ()):
            place = places.get((*whose, status["name"]))
            container_id = (status.get("containerID") or "").rpartition("://")[2]
            if place is not None and container_id and "running" in (status.get("state") or {}):
                yield Started(place[1], container_id)


@dataclass(frozen=True, slots=True)
class _MountLook:
    """`known`: a process of the container was seen. `bare`: its first, where none of them has the mount."""

    at: float
    known: bool = False
    bare: Listed | None = None


class Mounts:
    def __init__(self, clock: Callable[[], float], proc: Path) -> None:
        """`clock`: seconds, monotonic."""
        self._clock = clock
        self._proc = proc
        self._looks: dict[str, _MountLook] = {}

    def missing(self, containers: Collection[Started]) -> dict[Uuid, list[Listed]]:
        """Of each container without the mount its first process, with no memory; by GPU. Blocks."""
        before = {it.container_id: self._looks[it.container_id] for it in containers if it.container_id in self._looks}
        unsettled = {it.container_id for it in containers if not self._is_settled(before.get(it.container_id))}
        self._looks = before | (self._look(unsettled) if unsettled else {})
        found: dict[Uuid, list[Listed]] = {}
        for container in containers:
            if (bare := self._looks[container.container_id].bare) is not None:
                found.setdefault(container.uuid, []).append(bare)
        return found

    def _is_settled(self, look: _MountLook | None) -> bool:
        if look is None:
            return False
        if look.bare is not None:
            same = processes.read_start_time(look.bare.pid, self._proc) == look.bare.started
            return same and self._has_mount(look.bare) is False
        return look.known or self._clock() - look.at < RETRY_SECONDS

    def _look(self, container_ids: Collection[str]) -> dict[str, _MountLook]:
        now = self._clock()
        members: dict[str, list[Listed]] = {container_id: [] for container_id in container_ids}
        for process in self._processes():
            for owner in process.owners:
                if owner.container_id in members:
                    members[owner.container_id].append(process)
        return {container_id: self._judge(listed, now) for container_id, listed in members.items()}

    def _judge(self, listed: list[Listed], now: float) -> _MountLook:
        """One that has the mount is enough: another may have mounts of its own making, or just be put in by an exec."""
        seen = [(process, mounted) for process in listed if (mounted := self._has_mount(process)) is not None]
        if not seen or any(mounted for _, mounted in seen):
            return _MountLook(now, bool(seen))
        return _MountLook(now, True, min((process for process, _ in seen), key=lambda process: process.started))

    def _processes(self) -> Iterator[Listed]:
        for pid in (int(entry.name) for entry in self._proc.iterdir() if entry.name.isdigit()):
            try:
                owners = processes.owners_of(processes.text_of(self._proc / str(pid) / "cgroup"))
            except OSError:
                continue
            begun = processes.read_start_time(pid, self._proc) if owners else None
            if begun is not None:
                yield Listed(pid, begun, 0, False, owners, bare=True)

    def _has_mount(self, process: Listed) -> bool | None:
        """None: it is gone."""
        try:
            mountinfo = processes.text_of(self._proc / str(process.pid) / "mountinfo")
        except OSError:
            return None
        return processes.has_mount(mountinfo, names.CLIENT_PIPE_DIR)
