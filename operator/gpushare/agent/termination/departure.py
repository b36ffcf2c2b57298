"""Departure without harm: the CUDA clients of departing pods leave through their MPS daemon before a signal hits them.

A process that is killed while its kernel runs kills every neighbour on its GPU (measured on H200); one whose contexts
`terminate_client` has ended does not. Guarantees: within 0.3 s of a pod's departure being known, each of its clients
that would die of SIGTERM is being ended, later ones as they appear, and the others 2 s before the kubelet kills. Does
not guarantee that this comes before the kubelet's first signal: the webhook's preStop sleep does. Nothing is polled
while no pod departs.

One GPU's CUDA clients, watched while pods depart: who is due, and is handed to be ended.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gpushare.agent.aio.blocking import BlockingCaller, HungError
from gpushare.agent.process import processes
from gpushare.agent.process.process_tree import ancestors, fatal_ancestor
from gpushare.agent.process.processes import Process
from gpushare.agent.termination.departing import (
    SPARE_SECONDS,
    Departing,
    Departures,
    container_name,
    decide,
    departure_of,
)
from gpushare.agent.termination.kubelet_kills import KubeletKill
from gpushare.agent.termination.terminate import ClientTerminator, TerminationCause
from gpushare.api.conditions import EventReason
from gpushare.api.gpunode import Uuid
from gpushare.kube import events
from gpushare.kube.client import Object
from gpushare.kube.event_recorder import Event
from gpushare.nvml.types import Nvml, NvmlError

LOG = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
NVML_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class DueClient:
    """A client process that is to be ended now. `with_ancestor`: PID of the one that would take it along."""

    process: Process
    departing: Departing
    with_ancestor: int | None = None


class ClientGuard:
    def __init__(self, uuid: Uuid, nvml: Nvml, endings: ClientTerminator, proc: Path) -> None:
        self._uuid = uuid
        self._nvml = nvml
        self._endings = endings
        self._proc = proc
        self._nvml_lane = BlockingCaller(f"MPS clients of GPU {uuid}", NVML_SECONDS)
        self._retry_at: dict[tuple[int, int], float] = {}
        self._told = ""

    async def end_due(
        self, departing: Mapping[str, Sequence[Departing]], clock: Callable[[], float]
    ) -> list[DueClient]:
        """Ends the clients of `departing` pods that are due; returns those that the daemon has ended."""
        ended: list[DueClient] = []
        trouble = ""
        try:
            due = await self._nvml_lane.call(self._due, departing, clock())
            if due:
                gone, trouble = await self._endings.end(
                    self._uuid, [item.process for item in due], TerminationCause.DEPARTURE
                )
                ended = [item for item in due if item.process in gone]
                self._retry_at |= {_key(item.process): clock() + RETRY_SECONDS for item in due if item not in ended}
        except (NvmlError, HungError) as error:
            trouble = str(error)
        if trouble and trouble != self._told:
            LOG.warning("clients of departing pods on GPU %s not ended yet, trying again: %s", self._uuid, trouble)
        if trouble or ended:
            self._told = trouble
        return ended

    def _due(self, departing: Mapping[str, Sequence[Departing]], now: float) -> list[DueClient]:
        """Those whose end is nearest first. Blocks."""
        listed = self._nvml.processes(self._uuid).mps_clients
        clients = processes.read_all((item.pid for item in listed), self._proc)
        keys = {_key(process) for process in clients}
        self._retry_at = {key: at for key, at in self._retry_at.items() if key in keys}
        due = [self._judged(process, departing, now) for process in clients]
        return sorted((item for item in due if item is not None), key=lambda item: item.departing.kill_at)

    def _judged(self, process: Process, departing: Mapping[str, Sequence[Departing]], now: float) -> DueClient | None:
        if process.owner is None:
            return None
        leaves = departure_of(departing.get(process.owner.pod_uid, ()), process.owner)
        if leaves is None or self._retry_at.get(_key(process), now) > now or self._endings.asked(self._uuid, process):
            return None
        fatal = None
        if process.catches_sigterm:
            fatal = fatal_ancestor(ancestors(process.pid, process.owner, self._proc))
        ends_itself = process.catches_sigterm and fatal is None
        return DueClient(process, leaves, fatal) if decide(now, leaves.kill_at, ends_itself) == "terminate" else None


def _key(process: Process) -> tuple[int, int]:
    """A PID alone may belong to another process by the next look."""
    return process.pid, process.started


RESCAN_SECONDS = 0.25
SLOW_RESCAN_SECONDS = 2.0
"""While all that is left are long grace periods: a pod may depart for hours."""
HASTE_SECONDS = 5.0


class DepartureGuard:
    def __init__(
        self,
        nvml: Nvml,
        pods: Callable[[], Mapping[str, Object]],
        gpus: Callable[[], Collection[Uuid]],
        endings: ClientTerminator,
        tell: Callable[[Event], None],
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        proc: Path = Path("/proc"),
    ) -> None:
        """`pods`: this node's by uid. `gpus`: those with a daemon of ours. `tell`: takes what becomes an event, and
        never waits. `clock`: seconds, monotonic. `wall`: seconds since 1970.
        """
        self._pods = pods
        self._gpus = gpus
        self._tell = tell
        self._clock = clock
        self._wall = wall
        self._new_guard = partial(ClientGuard, nvml=nvml, endings=endings, proc=proc)
        self._poked = asyncio.Event()
        self._departures = Departures()
        self._departing: Mapping[str, Sequence[Departing]] = {}
        self._guards: dict[Uuid, ClientGuard] = {}
        self._scans: dict[Uuid, asyncio.Task[None]] = {}

    def poke(self) -> None:
        """To be called when a pod of this node has changed."""
        self._poked.set()

    def killing(self, killing: KubeletKill) -> None:
        """To be called when the kubelet says that it ends a container, or a pod, by itself."""
        if self._departures.kill(killing, self._pods(), self._clock(), self._wall()):
            self.poke()

    async def run(self) -> None:
        """Runs until cancelled."""
        try:
            while True:
                self._poked.clear()
                self._look()
                # Not asyncio.wait_for: Python 3.11's can swallow a cancellation that comes with the poke.
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause(self._departing, self._clock())):
                        await self._poked.wait()
        finally:
            for task in self._scans.values():
                task.cancel()

    def _look(self) -> None:
        self._departing = self._departures.look(self._pods(), self._clock(), self._wall())
        if not self._departing:
            return
        for uuid in self._gpus():
            # A GPU whose driver or daemon hangs is left to its own scan and does not hold up the others.
            if uuid not in self._scans:
                self._scans[uuid] = asyncio.create_task(self._scan(uuid), name=f"departures from {uuid}")

    async def _scan(self, uuid: Uuid) -> None:
        try:
            guard = self._guards.setdefault(uuid, self._new_guard(uuid))
            for due in await guard.end_due(self._departing, self._clock):
                self._tell(news(uuid, due))
        finally:
            del self._scans[uuid]


def pause(departing: Mapping[str, Sequence[Departing]], now: float) -> float | None:
    """Seconds until the next look, without news; None: nothing departs."""
    items = [item for some in departing.values() for item in some]
    if not items:
        return None
    fresh = any(now - (item.kill_at - item.grace) < HASTE_SECONDS for item in items)
    near = any(abs(item.kill_at - SPARE_SECONDS - now) < HASTE_SECONDS for item in items)
    return RESCAN_SECONDS if fresh or near else SLOW_RESCAN_SECONDS


def news(uuid: Uuid, due: DueClient) -> Event:
    """One for each process, which the subject names: a container may have several."""
    return Event(
        events.reference(due.departing.pod, "v1", "Pod"),
        kind="Normal",
        reason=EventReason.CLIENT_TERMINATED,
        action="TerminateClient",
        note=note(uuid, due),
        subject=f"{due.process.pid}/{due.process.started}",
    )


def note(uuid: Uuid, due: DueClient) -> str:
    """The event's text: what was done, to whom, why, and for whose sake."""
    process, pod = due.process, due.departing.pod
    name = container_name(pod, process.owner.container_id if process.owner else "")
    container = f"container {name}" if name else "an unknown container"
    why = "catches SIGTERM but its time is over" if process.catches_sigterm else "does not catch SIGTERM"
    if due.with_ancestor is not None:
        why = f"would be killed as soon as process {due.with_ancestor}, which it depends on, dies of SIGTERM"
    metadata = pod["metadata"]
    whose = f"{container} of pod {metadata['namespace']}/{metadata['name']}"
    return (
        f"Ended the CUDA contexts of process {process.pid} ({whose}) on GPU {uuid} through its MPS daemon: the pod "
        f"{due.departing.why}, the process {why}, and being killed in the middle of a kernel it would take all other "
        "clients of this GPU with it."
    )
