"""Departure without harm: clients of departing pods leave through their MPS daemon before a signal hits them.

A process that is killed in mid-kernel kills every neighbour on its GPU (measured on H200); one whose contexts
`terminate_client` has ended does not.

Guarantees: once a pod's departure is known, each of its clients that would die of its container's stop signal (SIGTERM,
if not said otherwise) is terminated within 0.3 s, also clients that start later; the others are terminated 2 s before
the kubelet kills. Nothing is polled while no pod departs. A GPU whose driver or daemon hangs does not hold up the
others.
Does not guarantee that this comes before the kubelet's first signal: the webhook's preStop sleep does.
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
from gpushare.agent.process import processes, signals
from gpushare.agent.process.processes import Identity, Process, identity
from gpushare.agent.terminate.departures import (
    SPARE_SECONDS,
    Departure,
    DepartureTracker,
    first_departure,
    is_due,
)
from gpushare.agent.terminate.kubelet_kills import KubeletKill
from gpushare.agent.terminate.terminate import ClientTerminator, TerminationCause
from gpushare.api.conditions import EventReason
from gpushare.api.gpunode import Uuid
from gpushare.kube.client import Object
from gpushare.kube.events.event import Event, reference
from gpushare.kube.pods import container_name, full_name, stop_signals
from gpushare.messages.log_on_change import LogOnChange
from gpushare.mps.clock import boot_clock
from gpushare.nvml.types import Nvml, NvmlError
from gpushare.process.procfs import PROC, Owner, owner_among

LOG = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
NVML_SECONDS = 2.0
RESCAN_SECONDS = 0.25
SLOW_RESCAN_SECONDS = 2.0
"""While only long grace periods are left: a pod may depart for hours."""
FAST_SECONDS = 5.0
"""The fast pace holds this long after a departure began, and this long about the moment of termination."""

Departures = Mapping[str, Sequence[Departure]]
"""By pod uid."""


@dataclass(frozen=True, slots=True)
class DueClient:
    """A client process that is to be terminated now. `signals`: which its container may be stopped with, by name.
    `catches`: whether it has handlers for all of them. `fatal_ancestor`: PID of the process whose end would kill it.
    """

    process: Process
    owner: Owner
    departure: Departure
    signals: tuple[str, ...]
    catches: bool
    fatal_ancestor: int | None = None


class ClientGuard:
    """Terminates the due clients of one GPU."""

    def __init__(self, uuid: Uuid, nvml: Nvml, terminator: ClientTerminator, proc: Path) -> None:
        self._uuid = uuid
        self._nvml = nvml
        self._terminator = terminator
        self._proc = proc
        self._nvml_caller = BlockingCaller(f"MPS clients of GPU {uuid}", NVML_SECONDS)
        self._retry_at: dict[Identity, float] = {}
        self._problems = LogOnChange(LOG)

    async def terminate_due(self, departures: Departures, clock: Callable[[], float]) -> list[DueClient]:
        """Returns the clients that the daemon has terminated now."""
        terminated: list[DueClient] = []
        problem = ""
        try:
            due = await self._nvml_caller.call(self._due, departures, clock())
            if due:
                processes_ended, problem = await self._terminator.terminate(
                    self._uuid, [client.process for client in due], TerminationCause.DEPARTURE
                )
                terminated = [client for client in due if client.process in processes_ended]
                failed = [client for client in due if client not in terminated]
                self._retry_at |= {identity(client.process): clock() + RETRY_SECONDS for client in failed}
        except (NvmlError, HungError) as error:
            problem = str(error)
        if problem:
            self._problems.log(
                "clients of departing pods on GPU %s not ended yet, trying again: %s", self._uuid, problem
            )
        elif terminated:
            self._problems.clear()
        return terminated

    def _due(self, departures: Departures, now: float) -> list[DueClient]:
        """Blocks. Those that the kubelet kills first come first."""
        listed = self._nvml.processes(self._uuid).mps_clients
        clients = processes.read_all((item.pid for item in listed), self._proc)
        known = {identity(process) for process in clients}
        self._retry_at = {key: at for key, at in self._retry_at.items() if key in known}
        due = [self._due_client(process, departures, now) for process in clients]
        return sorted((client for client in due if client is not None), key=lambda client: client.departure.kill_at)

    def _due_client(self, process: Process, departures: Departures, now: float) -> DueClient | None:
        owner = owner_among(process.owners, departures)
        if owner is None:
            return None
        departure = first_departure(departures.get(owner.pod_uid, ()), owner, processes.started_at(process))
        if departure is None or self._retry_at.get(identity(process), now) > now:
            return None
        if self._terminator.was_asked(self._uuid, process):
            return None
        client = self._client(process, owner, departure)
        ends_itself = client.catches and client.fatal_ancestor is None
        return client if is_due(now, departure.kill_at, ends_itself) else None

    def _client(self, process: Process, owner: Owner, departure: Departure) -> DueClient:
        names = tuple(sorted(stop_signals(departure.pod, container_name(departure.pod, owner.container_id))))
        numbers = [signals.number_of(name) for name in names]
        catches = all(number is not None and process.catches(number) for number in numbers)
        if not catches:
            return DueClient(process, owner, departure, names, catches)
        fatal = (
            processes.fatal_ancestor(processes.ancestors(process.pid, owner, number, self._proc))
            for number in numbers
            if number is not None
        )
        return DueClient(process, owner, departure, names, catches, next((pid for pid in fatal if pid), None))


class DepartureGuard:
    """Follows this node's pods and, while some of them depart, every shared GPU's clients."""

    def __init__(
        self,
        nvml: Nvml,
        pods: Callable[[], Mapping[str, Object]],
        gpus: Callable[[], Collection[Uuid]],
        terminator: ClientTerminator,
        record: Callable[[Event], None],
        clock: Callable[[], float] = boot_clock,
        wall: Callable[[], float] = time.time,
        proc: Path = PROC,
    ) -> None:
        """`pods`: this node's by uid. `gpus`: those with an MPS daemon. `record`: takes an event, and never waits.

        `clock`: CLOCK_BOOTTIME seconds. `wall`: seconds since 1970.
        """
        self._pods = pods
        self._gpus = gpus
        self._record = record
        self._clock = clock
        self._wall = wall
        self._new_guard = partial(ClientGuard, nvml=nvml, terminator=terminator, proc=proc)
        self._poked = asyncio.Event()
        self._tracker = DepartureTracker()
        self._departures: Departures = {}
        self._guards: dict[Uuid, ClientGuard] = {}
        self._scans: dict[Uuid, asyncio.Task[None]] = {}

    def poke(self) -> None:
        """Call after every change of this node's pods."""
        self._poked.set()

    def add_kill(self, kill: KubeletKill) -> None:
        """Call when the kubelet reports that it ends a container, or a pod, by itself."""
        if self._tracker.add_kill(kill, self._pods(), self._clock(), self._wall()):
            self.poke()

    async def run(self) -> None:
        """Runs until cancelled."""
        try:
            while True:
                self._poked.clear()
                self.start_scans()
                # Not asyncio.wait_for: Python 3.11's can swallow a cancellation that comes with the poke.
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause(self._departures, self._clock())):
                        await self._poked.wait()
        finally:
            for task in self._scans.values():
                task.cancel()

    def start_scans(self) -> list[asyncio.Task[None]]:
        """One for each GPU while a pod departs; returns those under way."""
        self._departures = self._tracker.update(self._pods(), self._clock(), self._wall())
        for uuid in self._gpus() if self._departures else ():
            if uuid not in self._scans:
                self._scans[uuid] = asyncio.create_task(self._scan(uuid), name=f"departures from {uuid}")
        return list(self._scans.values())

    async def _scan(self, uuid: Uuid) -> None:
        try:
            guard = self._guards.setdefault(uuid, self._new_guard(uuid))
            for client in await guard.terminate_due(self._departures, self._clock):
                self._record(terminated_event(uuid, client))
        finally:
            del self._scans[uuid]


def pause(departures: Departures, now: float) -> float | None:
    """Seconds until the next scan if nothing changes; None: nothing departs."""
    items = [departure for some in departures.values() for departure in some]
    if not items:
        return None
    began = any(now - (departure.kill_at - departure.grace) < FAST_SECONDS for departure in items)
    near = any(abs(departure.kill_at - SPARE_SECONDS - now) < FAST_SECONDS for departure in items)
    return RESCAN_SECONDS if began or near else SLOW_RESCAN_SECONDS


def terminated_event(uuid: Uuid, client: DueClient) -> Event:
    """One for each process, which the subject names: a container may have several."""
    return Event(
        reference(client.departure.pod, "v1", "Pod"),
        type="Normal",
        reason=EventReason.CLIENT_TERMINATED,
        action="TerminateClient",
        note=_note(uuid, client),
        subject=f"{client.process.pid}/{client.process.started}",
    )


def _note(uuid: Uuid, client: DueClient) -> str:
    """What was done, to which process, why, and what it prevents."""
    process, pod = client.process, client.departure.pod
    name = container_name(pod, client.owner.container_id)
    container = f"container {name}" if name else "an unknown container"
    caught = " and ".join(client.signals)
    why = f"catches {caught} but its time is over" if client.catches else f"does not catch {caught}"
    if client.fatal_ancestor is not None:
        stop = " or ".join(client.signals)
        why = f"would be killed as soon as process {client.fatal_ancestor}, which it depends on, dies of {stop}"
    return (
        f"Ended the CUDA contexts of process {process.pid} ({container} of pod {full_name(pod)}) on GPU {uuid} through "
        f"its MPS daemon: the pod {client.departure.why}, the process {why}, and being killed in the middle of a "
        "kernel it would take all other clients of this GPU with it."
    )
