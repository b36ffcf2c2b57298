"""Reads who uses each shared GPU from NVML's last reading and /proc.

Guarantees: no reading is made from what cannot be trusted: an NVML that hangs, a lost GPU, pods that are not known yet.
NVML is not asked again. Of /proc one small file is read for each process that was there before, and a few for a new
one; all of /proc is searched only when a container with a slot has started (see `mounts`). However many processes the
node has, that search keeps no reading from being made.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from gpushare.agent.aio.blocking import BlockingCaller, HungError
from gpushare.agent.gpus.view import GpuView
from gpushare.agent.observe.mounts import (
    ContainerProcess,
    MountChecker,
    SlotContainer,
    lacking_class_library,
    running_containers,
)
from gpushare.agent.observe.usage import ClaimedGpu, ListedClients, ListedProcess, Reading, reading
from gpushare.agent.podresources.holdings import ContainerName, ShareGpu
from gpushare.agent.process.namespaces import read_mount_depth
from gpushare.agent.process.processes import Identity, identity
from gpushare.api.gpunode import ShareName, Uuid
from gpushare.api.gpushare import GpuShare
from gpushare.kube.client import Object
from gpushare.kube.pods import pods_by_cgroup_uid
from gpushare.messages.log_on_change import LogOnChange
from gpushare.mps.wire import FRESH_SECONDS, is_fresh
from gpushare.nvml.types import GpuProcess
from gpushare.process import procfs
from gpushare.process.procfs import PROC, Owner
from gpushare.process.termination_log import read_named_owners

LOG = logging.getLogger(__name__)
PROC_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class TakenGpu:
    """A GPU that a share has on this node. `server_pid`: of its MPS server, by its supervisor's state.

    `holders`: of a GPU that is given whole, the containers that have it; None of a shared one. `served`: whom its MPS
    server lists, without `named`; None: it is not known. `served_at`: CLOCK_BOOTTIME seconds.
    """

    share: ShareName
    server_pid: int | None
    holders: frozenset[ContainerName] | None = None
    served: ListedClients | None = None
    served_at: float = 0.0


@dataclass(frozen=True, slots=True)
class UsageSources:
    """What readings are made from. `taken`: our GPUs. `places`: where the containers' slots and claims are."""

    views: Mapping[Uuid, GpuView]
    taken: Mapping[Uuid, TakenGpu]
    pods: Collection[Object]
    shares: Mapping[ShareName, GpuShare]
    places: Mapping[ContainerName, ShareGpu]
    claimed: ClaimedGpu


class UsageReader:
    """`readings`: the latest of each shared GPU; a GPU of which nothing is known now is not in it."""

    def __init__(
        self,
        clock: Callable[[], float],
        was_terminated: Callable[[Uuid, ListedProcess], bool],
        proc: Path = PROC,
        proc_seconds: float = PROC_SECONDS,
        read_depth: Callable[[int, Path], int | None] = read_mount_depth,
    ) -> None:
        """`clock`: CLOCK_BOOTTIME seconds, the one of the views. `was_terminated`: whether the contexts of a process
        were ended through its GPU's MPS daemon. `proc_seconds`: the time limit of each search in /proc. `read_depth`:
        see `MountChecker`.
        """
        self.readings: dict[Uuid, Reading] = {}
        self._clock = clock
        self._was_terminated = was_terminated
        self._proc = proc
        self._proc_caller = BlockingCaller("processes on GPUs", proc_seconds)
        self._mounts_caller = BlockingCaller("mounts of containers", proc_seconds)
        self._mounts = MountChecker(clock, proc, read_depth)
        self._problems = LogOnChange(LOG)
        self._owners: dict[Identity, tuple[Owner, ...]] = {}

    def pre_stop_mounted(self) -> bool | None:
        """See MountChecker.pre_stop_mounted."""
        return self._mounts.pre_stop_mounted()

    async def read(self, sources: UsageSources) -> list[Reading]:
        """The readings that are new since the last call. HungError: /proc does not answer."""
        now, taken = self._clock(), sources.taken
        views = {uuid: view for uuid, view in sources.views.items() if uuid in taken and _is_fresh(view, now)}
        before = {uuid: old for uuid, old in self.readings.items() if uuid in views and old.share == taken[uuid].share}
        newer = {
            uuid: view for uuid, view in views.items() if uuid not in before or before[uuid].taken_at < view.seen_at
        }
        self.readings = before
        running = list(running_containers(sources.pods, sources.places)) if newer else []
        unmounted = await self._read_mounts(running) if newer else {}
        listed = await self._proc_caller.call(self._read_listed, newer, taken)
        fresh = {uuid: taken[uuid] for uuid in newer if is_fresh(taken[uuid].served_at, now)}
        served = await self._proc_caller.call(self._read_served, newer, fresh)
        by_uid = pods_by_cgroup_uid(sources.pods)
        new = [
            reading(
                uuid,
                taken[uuid].share,
                view.seen_at,
                view.info.memory_mib,
                listed[uuid],
                by_uid,
                sources.shares.get(taken[uuid].share),
                unmounted.get(uuid, ()),
                sources.claimed,
                taken[uuid].holders,
                view.free_mib,
                self._mounts.any_mounted,
                served.get(uuid),
            )
            for uuid, view in newer.items()
        ]
        self.readings = before | {item.uuid: item for item in new}
        self._forget_ended()
        return new

    async def _read_mounts(self, running: Collection[SlotContainer]) -> dict[Uuid, list[ListedProcess]]:
        """A process of each container without mounts, or of which that is not known, by GPU; empty while /proc is
        searched for longer than it may.
        """
        try:
            unmounted = await self._mounts_caller.call(self._mounts.unmounted, running)
        except (HungError, OSError) as error:
            self._problems.log("%s", error)
            return {}
        self._problems.clear()
        return {
            uuid: [_unreached(start.lacking, start.problem) for start in starts if start.lacking is not None]
            for uuid, starts in unmounted.items()
        }

    def _read_listed(
        self, views: Mapping[Uuid, GpuView], taken: Mapping[Uuid, TakenGpu]
    ) -> dict[Uuid, list[ListedProcess]]:
        """Blocks. The processes that NVML lists, by GPU.

        Our own servers, and processes that have ended since, are left out.
        """
        listed = {}
        for uuid, view in views.items():
            shared = taken[uuid].holders is None
            clients = [self._listed(uuid, process, True, shared) for process in view.processes.mps_clients]
            others = [
                self._listed(uuid, process, False, shared)
                for process in view.processes.compute
                if process.pid != taken[uuid].server_pid
            ]
            listed[uuid] = [item for item in (*clients, *others) if item is not None]
        return listed

    def _read_served(self, views: Mapping[Uuid, GpuView], taken: Mapping[Uuid, TakenGpu]) -> dict[Uuid, ListedClients]:
        """Blocks. Whom the MPS servers list, as far as that is known."""
        served = {}
        silent = (item for gpu in taken.values() if gpu.served is not None for item in gpu.served.without_pages)
        lacking = lacking_class_library(silent, self._proc)
        for uuid, gpu in taken.items():
            if gpu.served is not None:
                seen = {process.pid for process in views[uuid].processes.mps_clients}
                named = [self._named(uuid, pid) for pid in gpu.served.contexts if pid not in seen]
                served[uuid] = replace(
                    gpu.served,
                    named=tuple(item for item in named if item is not None),
                    without_library=gpu.served.without_pages & lacking,
                )
        return served

    def _named(self, uuid: Uuid, pid: int) -> ListedProcess | None:
        """None: whose it is, is not known."""
        try:
            there = self._listed(uuid, GpuProcess(pid, 0), True, shared=True)
        except OSError:
            return None
        return ListedProcess(pid, 0, 0, True) if there is None else None if there.unknown else there

    def _listed(self, uuid: Uuid, process: GpuProcess, mps: bool, shared: bool) -> ListedProcess | None:
        """None: it has ended. A process whose pod is not known is listed without one: it hides nowhere. OSError: not
        even that is known whether it runs.
        """
        started = procfs.read_start_time(process.pid, self._proc)
        if started is None:
            return None
        try:
            owners, unknown = self._read_owners(process.pid, started), ""
        except OSError as error:
            owners, unknown = (), f"/proc/{process.pid}/cgroup: {error.strerror or error}"
        if owners is None:
            return None
        listed = ListedProcess(process.pid, started, process.memory_mib, mps, owners, unknown=unknown)
        if shared and not mps and owners:
            start = self._mounts.start_of(ContainerProcess(process.pid, started, owners))
            unmounted = start.lacking is not None and not start.problem
            listed = replace(listed, unmounted=unmounted, unknown="" if start.own_view else start.problem)
        return replace(listed, terminated=True) if self._was_terminated(uuid, listed) else listed

    def _read_owners(self, pid: int, started: int) -> tuple[Owner, ...] | None:
        known = self._owners.get((pid, started))
        if known is not None:
            return known
        owners = read_named_owners(pid, self._proc)
        if owners is not None:
            self._owners[pid, started] = owners
        return owners

    def _forget_ended(self) -> None:
        """What is known of processes that no reading lists."""
        listed = {
            identity(process) for item in self.readings.values() for usage in item.usages for process in usage.processes
        }
        self._owners = {key: owners for key, owners in self._owners.items() if key in listed}


def _unreached(process: ContainerProcess, problem: str) -> ListedProcess:
    return ListedProcess(process.pid, process.started, 0, False, process.owners, unmounted=not problem, unknown=problem)


def _is_fresh(view: GpuView, now: float) -> bool:
    return not view.lost and now - view.seen_at <= FRESH_SECONDS
