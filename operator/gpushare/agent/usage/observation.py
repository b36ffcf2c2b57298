"""Who uses the shared GPUs, read every few seconds from what NVML showed last.

Guarantees: what cannot be trusted is no reading: an NVML that hangs, a GPU that is lost, pods that are not known yet.
NVML is not asked again, and of /proc one small file is read for each process that was there before, two for a new one;
it is gone through as a whole when a container with a slot has started.

UsageReader, judgement and what follows of it, as the agent's loop runs them: look, judge, act.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from gpushare.agent.aio.blocking import BlockingCaller, HungError
from gpushare.agent.gpus.inventory import GpuView
from gpushare.agent.kubelet.holdings import ContainerName, ShareGpu
from gpushare.agent.process import processes
from gpushare.agent.process.processes import Owner
from gpushare.agent.reconcile.daemon_files import DaemonFiles
from gpushare.agent.usage.mounts import Mounts, Started, started
from gpushare.agent.usage.usage import ClaimedGpu, Listed, Reading, pods_by_cgroup_uid, reading
from gpushare.agent.usage.violations import Judgement, ViolationTracker
from gpushare.api import names
from gpushare.api.gpunode import Finding, ShareName, Uuid
from gpushare.api.gpushare import GpuShare
from gpushare.kube.client import Object
from gpushare.mps.wire import FRESH_SECONDS
from gpushare.nvml.types import GpuProcess

LOG = logging.getLogger(__name__)


class Enforcer(Protocol):
    """What follows of a judgement; see enforcement.Enforcement."""

    def ended(self, uuid: Uuid, process: Listed) -> bool:
        """Whether the contexts of a process were ended through its GPU's daemon."""
        ...

    def act(self, judgement: Judgement, terminating: Collection[ShareName]) -> None:
        """`terminating`: the shares whose policy is to end offenders. Never waits."""
        ...


class UsageMonitor:
    def __init__(self, clock: Callable[[], float], enforcer: Enforcer, proc: Path = Path("/proc")) -> None:
        """`clock`: CLOCK_BOOTTIME seconds."""
        self._clock = clock
        self._enforcer = enforcer
        self._observation = UsageReader(clock, enforcer.ended, proc)
        self._findings: ViolationTracker | None = None
        self._told = ""

    @property
    def readings(self) -> dict[Uuid, Reading]:
        return self._observation.readings

    def findings(self) -> list[Finding] | None:
        """None: what an earlier agent told is not known yet, so it stands."""
        return None if self._findings is None else self._findings.told()

    async def look(
        self,
        views: Mapping[Uuid, GpuView],
        on_disk: Mapping[Uuid, DaemonFiles],
        pods: Collection[Object],
        shares: Mapping[ShareName, GpuShare],
        places: Mapping[ContainerName, ShareGpu],
        claimed: ClaimedGpu,
        before: Callable[[], Sequence[Finding]],
    ) -> None:
        """`places`: where the containers' slots and claims are. `before`: the findings that the API holds; asked for at
        the first look.
        """
        if self._findings is None:
            self._findings = ViolationTracker(before(), self._clock())
        taken = {uuid: SharedGpu(item.wanted.share, item.server_pid) for uuid, item in on_disk.items()}
        try:
            readings = await self._observation.look(views, taken, pods, shares, places, claimed)
        except HungError as error:
            self._note(str(error))
            return
        self._note("")
        wall = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        judgement = self._findings.judge(readings, {uuid: item.share for uuid, item in taken.items()}, wall)
        terminating = [share.name for share in shares.values() if share.terminates]
        self._enforcer.act(judgement, terminating)

    def _note(self, trouble: str) -> None:
        if trouble and trouble != self._told:
            LOG.warning("the processes on the GPUs are not known: %s", trouble)
        self._told = trouble


PROC_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class SharedGpu:
    """A GPU that a share has on this node. `server_pid`: of its MPS server, as its supervisor tells it."""

    share: ShareName
    server_pid: int | None


class UsageReader:
    def __init__(
        self,
        clock: Callable[[], float],
        ended: Callable[[Uuid, Listed], bool],
        proc: Path = Path("/proc"),
    ) -> None:
        """`clock`: CLOCK_BOOTTIME seconds, the one of the views. `ended`: whether the contexts of a process were ended
        through its GPU's daemon.
        """
        self.readings: dict[Uuid, Reading] = {}
        self._clock = clock
        self._ended = ended
        self._proc = proc
        self._lane = BlockingCaller("processes on GPUs", PROC_SECONDS)
        self._mounts = Mounts(clock, proc)
        self._owners: dict[tuple[int, int], tuple[Owner, ...]] = {}

    async def look(
        self,
        views: Mapping[Uuid, GpuView],
        taken: Mapping[Uuid, SharedGpu],
        pods: Collection[Object],
        shares: Mapping[ShareName, GpuShare],
        places: Mapping[ContainerName, ShareGpu],
        claimed: ClaimedGpu,
    ) -> list[Reading]:
        """The readings that are new since the last look; `readings` has those that are still true.

        `places`: where the containers' slots and claims are. HungError: /proc does not answer.
        """
        now = self._clock()
        views = {uuid: view for uuid, view in views.items() if uuid in taken and _is_fresh(view, now)}
        before = {uuid: old for uuid, old in self.readings.items() if uuid in views and old.share == taken[uuid].share}
        newer = {
            uuid: view for uuid, view in views.items() if uuid not in before or before[uuid].taken_at < view.seen_at
        }
        self.readings = before
        running = list(started(pods, places)) if newer else []
        listed, bare = await self._lane.call(self._read, newer, taken, running)
        known = pods_by_cgroup_uid(pods)
        found = [
            reading(
                uuid,
                taken[uuid].share,
                view.seen_at,
                view.info.memory_mib,
                listed[uuid],
                known,
                shares.get(taken[uuid].share),
                bare.get(uuid, ()),
                claimed,
            )
            for uuid, view in newer.items()
        ]
        self.readings = before | {item.uuid: item for item in found}
        self._forget()
        return found

    def _read(
        self, views: Mapping[Uuid, GpuView], taken: Mapping[Uuid, SharedGpu], running: Collection[Started]
    ) -> tuple[dict[Uuid, list[Listed]], dict[Uuid, list[Listed]]]:
        """Blocks. Whom NVML lists, and containers without mounts. Our own servers, and what has ended since, are left
        out.
        """
        found = {}
        for uuid, view in views.items():
            clients = [self._listed(uuid, process, True) for process in view.processes.mps_clients]
            others = [
                self._listed(uuid, process, False)
                for process in view.processes.compute
                if process.pid != taken[uuid].server_pid
            ]
            found[uuid] = [item for item in (*clients, *others) if item is not None]
        return found, self._mounts.missing(running) if views else {}

    def _listed(self, uuid: Uuid, process: GpuProcess, mps: bool) -> Listed | None:
        started = processes.read_start_time(process.pid, self._proc)
        owners = None if started is None else self._read_owners(process.pid, started)
        if started is None or owners is None:
            return None
        found = Listed(
            process.pid, started, process.memory_mib, mps, owners, bare=not mps and self._is_bare(process.pid)
        )
        return replace(found, ended=True) if self._ended(uuid, found) else found

    def _read_owners(self, pid: int, started: int) -> tuple[Owner, ...] | None:
        key = (pid, started)
        if key not in self._owners:
            try:
                self._owners[key] = processes.owners_of(processes.text_of(self._proc / str(pid) / "cgroup"))
            except OSError:
                return None
        return self._owners[key]

    def _is_bare(self, pid: int) -> bool:
        try:
            mountinfo = processes.text_of(self._proc / str(pid) / "mountinfo")
        except OSError:
            return False
        return not processes.has_mount(mountinfo, names.CLIENT_PIPE_DIR)

    def _forget(self) -> None:
        """What no reading lists any more."""
        listed = {
            (process.pid, process.started)
            for item in self.readings.values()
            for usage in item.usages
            for process in usage.listed
        }
        self._owners = {key: owners for key, owners in self._owners.items() if key in listed}


def _is_fresh(view: GpuView, now: float) -> bool:
    return not view.lost and now - view.seen_at <= FRESH_SECONDS
