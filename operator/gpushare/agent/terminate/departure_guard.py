"""Departure without harm: clients of departing pods leave through their MPS daemon before a signal hits them.

A process that is killed in mid-kernel kills every neighbour on its GPU (measured on H200); one whose contexts
`terminate_client` has ended does not.

Guarantees: once a pod's departure is known, each of its clients that would die of its container's stop signal (SIGTERM,
if not said otherwise) is ended at once, and one that starts later within 0.3 s. The others are ended 2 s before the
kubelet kills. Nothing is polled while no pod departs. A GPU whose driver or daemon hangs does not hold up the
others.
Does not guarantee that this comes before the kubelet's first signal: the webhook's preStop sleep does.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpushare.agent.aio.blocking import BlockingCaller, HungError
from gpushare.agent.process import processes, signals
from gpushare.agent.process.processes import Process
from gpushare.agent.terminate.clients import NVML_SECONDS, GpuScans, read_clients
from gpushare.agent.terminate.departures import (
    SPARE_SECONDS,
    Departure,
    DepartureTracker,
    first_departure,
    is_due,
)
from gpushare.agent.terminate.executor import TerminationExecutor
from gpushare.agent.terminate.kubelet_kills import KubeletKill
from gpushare.agent.terminate.requests import TerminationReason, TerminationRequest
from gpushare.api.gpunode import Uuid
from gpushare.kube.client import Object
from gpushare.kube.events.event import reference
from gpushare.kube.pods import container_name, full_name, stop_signals
from gpushare.mps.clock import boot_clock
from gpushare.mps.wire import StoppingContainer
from gpushare.nvml.types import Nvml, NvmlError
from gpushare.process.procfs import PROC, Owner, owner_among

RESCAN_SECONDS = 0.25
SLOW_RESCAN_SECONDS = 2.0
"""The pace while only long grace periods are left: a pod may depart for hours."""
FAST_SECONDS = 5.0
"""The fast pace holds this long after a departure began, and this long about the moment of termination."""

UNKNOWN = 0
"""The fatal ancestor of a process whose ancestors cannot be read."""
Departures = Mapping[str, Sequence[Departure]]
"""Departures by pod uid."""


@dataclass(frozen=True, slots=True)
class DepartingClient:
    """A client process of a departing pod. `signals`: which its container may be stopped with, by name. `catches`:
    whether it has handlers for all of them. `fatal_ancestor`: PID of the process whose end would kill it, or UNKNOWN.
    """

    process: Process
    owner: Owner
    departure: Departure
    signals: tuple[str, ...]
    catches: bool
    fatal_ancestor: int | None = None


def due_requests(uuid: Uuid, clients: Iterable[DepartingClient], now: float) -> list[TerminationRequest]:
    """Pure. Those that are to be ended now. `now`: CLOCK_BOOTTIME seconds."""
    return [
        _request(uuid, client)
        for client in clients
        if is_due(now, client.departure.kill_at, client.catches and client.fatal_ancestor is None)
    ]


class DepartureGuard:
    """Follows this node's pods and, while some of them depart, every shared GPU's clients."""

    def __init__(
        self,
        nvml: Nvml,
        pods: Callable[[], Mapping[str, Object]],
        gpus: Callable[[], Collection[Uuid]],
        executor: TerminationExecutor,
        clock: Callable[[], float] = boot_clock,
        wall: Callable[[], float] = time.time,
        proc: Path = PROC,
        served: Callable[[Uuid], Collection[int]] = lambda uuid: (),
    ) -> None:
        """`pods`: this node's by uid. `gpus`: those with an MPS daemon. `served`: the PIDs that its server lists.

        `clock`: CLOCK_BOOTTIME seconds. `wall`: seconds since 1970.
        """
        self._nvml = nvml
        self._pods = pods
        self._gpus = gpus
        self._executor = executor
        self._clock = clock
        self._wall = wall
        self._proc = proc
        self._served = served
        self._pods_changed = asyncio.Event()
        self._tracker = DepartureTracker()
        self._departures: Departures = {}
        self._callers: dict[Uuid, BlockingCaller] = {}
        self._scans = GpuScans("departures from", self._scan)

    def pods_changed(self) -> None:
        """Call after every change of this node's pods."""
        self._pods_changed.set()

    def add_kill(self, kill: KubeletKill) -> None:
        """Call when the kubelet reports that it ends a container, or a pod, by itself."""
        if self._tracker.add_kill(kill, self._pods(), self._clock(), self._wall()):
            self._pods_changed.set()

    def add_stop(self, pod: Object, stop: StoppingContainer) -> bool:
        """Call when a container's preStop hook says that it is being stopped. Whether that is news."""
        added = self._tracker.add_stop(pod, stop, self._clock())
        if added:
            self._pods_changed.set()
        return added

    async def run(self) -> None:
        """Runs until cancelled."""
        try:
            while True:
                self._pods_changed.clear()
                self.start_scans()
                # Not asyncio.wait_for: Python 3.11's can swallow a cancellation that comes with the change.
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause(self._departures, self._clock())):
                        await self._pods_changed.wait()
        finally:
            self._scans.cancel()

    def start_scans(self) -> list[asyncio.Task[None]]:
        """One for each GPU while a pod departs; returns those under way."""
        self._departures = self._tracker.update(self._pods(), self._clock(), self._wall())
        return self._scans.start(self._gpus() if self._departures else ())

    async def _scan(self, uuid: Uuid) -> None:
        caller = self._callers.setdefault(uuid, BlockingCaller(f"MPS clients of GPU {uuid}", NVML_SECONDS))
        try:
            clients = await caller.call(self._departing, uuid, self._departures)
        except (NvmlError, HungError, OSError) as error:
            self._executor.note(TerminationReason.DEPARTURE, uuid, str(error), "read")
            return
        self._executor.note(TerminationReason.DEPARTURE, uuid, "", "read")
        self._executor.submit(due_requests(uuid, clients, self._clock()))

    def _departing(self, uuid: Uuid, departures: Departures) -> list[DepartingClient]:
        """Blocks. Without those whose end was asked for already."""
        clients = read_clients(self._nvml, uuid, self._proc, self._served(uuid))
        departing = (self._departing_client(uuid, process, departures) for process in clients)
        return [client for client in departing if client is not None]

    def _departing_client(self, uuid: Uuid, process: Process, departures: Departures) -> DepartingClient | None:
        owner = owner_among(process.owners, departures)
        if owner is None:
            return None
        departure = first_departure(departures.get(owner.pod_uid, ()), owner, processes.started_at(process))
        if departure is None or self._executor.was_asked(uuid, process):
            return None
        names = tuple(
            sorted(stop_signals(departure.pod, container_name(departure.pod, owner.container_id, owner.container)))
        )
        numbers = [signals.number_of(name) for name in names]
        catches = all(number is not None and process.catches(number) for number in numbers)
        if not catches:
            return DepartingClient(process, owner, departure, names, catches)
        fatal = (self._fatal_ancestor(process, owner, number) for number in numbers if number is not None)
        found = next((pid for pid in fatal if pid is not None), None)
        return DepartingClient(process, owner, departure, names, catches, found)

    def _fatal_ancestor(self, process: Process, owner: Owner, number: int) -> int | None:
        """Whoever's ancestors are not known is not trusted to outlive them, and hides nobody else's departure."""
        try:
            return processes.fatal_ancestor(processes.ancestors(process.pid, owner, number, self._proc))
        except OSError:
            return UNKNOWN


def pause(departures: Departures, now: float) -> float | None:
    """Seconds until the next scan if nothing changes; None: nothing departs."""
    items = [departure for some in departures.values() for departure in some]
    if not items:
        return None
    began = any(now - (departure.kill_at - departure.grace) < FAST_SECONDS for departure in items)
    near = any(abs(departure.kill_at - SPARE_SECONDS - now) < FAST_SECONDS for departure in items)
    return RESCAN_SECONDS if began or near else SLOW_RESCAN_SECONDS


def _request(uuid: Uuid, client: DepartingClient) -> TerminationRequest:
    """The event says what was done, to which process, why, and what it prevents."""
    pod = client.departure.pod
    name = container_name(pod, client.owner.container_id, client.owner.container)
    container = f"container {name}" if name else "an unknown container"
    caught = " and ".join(client.signals)
    why = f"catches {caught} but its time is over" if client.catches else f"does not catch {caught}"
    stop = " or ".join(client.signals)
    if client.fatal_ancestor == UNKNOWN:
        why = f"may depend on a process that dies of {stop}: its ancestors could not be read"
    elif client.fatal_ancestor is not None:
        why = f"would be killed as soon as process {client.fatal_ancestor}, which it depends on, dies of {stop}"
    return TerminationRequest(
        TerminationReason.DEPARTURE,
        uuid,
        client.process,
        reference(pod, "v1", "Pod"),
        f" ({container} of pod {full_name(pod)})",
        f" on GPU {uuid} through its MPS daemon: the pod {client.departure.why}, the process {why}, and being killed "
        "in the middle of a kernel it would take all other clients of this GPU with it.",
        deadline=client.departure.kill_at,
    )
