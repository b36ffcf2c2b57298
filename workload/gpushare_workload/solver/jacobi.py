"""One Jacobi run split over processes: the workers' side, and the parent that decides when the run is done.

Guarantees: the answer is complete when `refine` returns. A worker whose neighbour is gone does not report it: the
parent knows how the neighbour ended, and reports that.
"""

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing import connection, get_context
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from gpushare_workload.backend.interface import Field, Slab, identity
from gpushare_workload.gpus.utilisation import GpuWatch
from gpushare_workload.processes.shared_array import SharedArray
from gpushare_workload.processes.stopping import Stop, StoppedError
from gpushare_workload.processes.team import START_SECONDS, Team
from gpushare_workload.processes.worker import Worker
from gpushare_workload.solver import halos, list_server
from gpushare_workload.solver.halos import Halos, HaloTransport, HostHalos, ManagerHalos
from gpushare_workload.solver.poisson_problem import PoissonProblem

STALL_SECONDS = 60.0
"""Longest time between two checks of the change."""
NEIGHBOUR_SECONDS = 10.0
"""A worker whose neighbour is gone waits this long for the parent to end it."""

Links = tuple[Connection | None, Connection | None]
"""The pipes to the neighbour above and to the one below."""


@dataclass(frozen=True, slots=True)
class JacobiSettings:
    problem: PoissonProblem
    parts: int
    transport: HaloTransport
    backend: str
    tolerance: float
    """The run is done when no value changes by more in one sweep; 0 runs all sweeps."""
    sweeps: int
    """The most sweeps."""
    check_every: int
    """Sweeps between two checks of the change."""


@dataclass(frozen=True, slots=True)
class JacobiResult:
    values: Field
    """(size + 2, size + 2)"""
    sweeps: int
    change: float
    """The largest change of any value in the last sweep."""
    seconds: float
    identity: dict[str, str | bool]
    busy_percent: float | None
    """How busy the whole GPU was; None if unknown."""


def refine(settings: JacobiSettings, stop: Stop, target: Callable[..., Any] | None = None) -> JacobiResult:
    """Runs `target` (default: `solve_slab`) in a process for each part.

    Raises UnsupportedError if the transport is CUDA IPC and the backend has none.
    """
    size = settings.problem.size + 2
    answer, parts = SharedArray((size, size)), settings.parts
    with ExitStack() as stack:
        storage: Any = None
        if settings.transport is HaloTransport.MANAGER:
            storage = list_server.start(stack.enter_context(Team(stop)), halos.TURNS * parts)
        elif settings.transport is HaloTransport.HOST:
            storage = HostHalos.storage(parts, size)
        team = stack.enter_context(Team(stop))
        for part, links in enumerate(_links(parts)):
            team.start(target or solve_slab, settings, part, storage, links, answer, name=f"slab {part}")
            for link in links:
                if link is not None:
                    link.close()
        if settings.transport is HaloTransport.IPC:
            _exchange_addresses(team)
        watch = GpuWatch()
        team.go()
        with watch as seen:
            began = time.monotonic()
            sweeps, change = _watch(team, settings)
            seconds = time.monotonic() - began
        identities = team.results(STALL_SECONDS)  # the answer is complete after this
        return JacobiResult(answer.array.copy(), sweeps, change, seconds, identities[0], seen.busy_percent)


def _links(parts: int) -> list[Links]:
    """The pipes of each part."""
    pipes = [get_context("spawn").Pipe() for _ in range(parts - 1)]
    uppers: list[Connection | None] = [None, *(below for _, below in pipes)]
    lowers: list[Connection | None] = [*(above for above, _ in pipes), None]
    return list(zip(uppers, lowers, strict=True))


def _exchange_addresses(team: Team) -> None:
    """Sends each part the CUDA IPC addresses of its neighbours."""
    known = dict(enumerate(team.gather(START_SECONDS)))
    for part in known:
        team.send(part, (known.get(part - 1), known.get(part + 1)))


def _watch(team: Team, settings: JacobiSettings) -> tuple[int, float]:
    """Ends the run when the change is small enough. Returns the number of sweeps and the last change."""
    sweeps = 0
    while True:
        sweeps = min(sweeps + settings.check_every, settings.sweeps)
        change = max(team.gather(STALL_SECONDS))
        more = sweeps < settings.sweeps and change > settings.tolerance
        team.send_all(more)
        if not more:
            return sweeps, change


def open_halos(worker: Worker, settings: JacobiSettings, part: int, slab: Slab, storage: Any) -> Halos:
    """The exchange of halos for one part. Blocks for CUDA IPC until the neighbours' addresses have come."""
    if settings.transport is HaloTransport.MANAGER:
        return ManagerHalos(slab, part, settings.parts, storage)
    if settings.transport is HaloTransport.HOST:
        return HostHalos(slab, part, settings.parts, storage)
    worker.send(halos.address(slab))
    halos.connect(slab, *worker.receive())
    return slab


def solve_slab(
    worker: Worker,
    settings: JacobiSettings,
    part: int,
    storage: Any,
    links: Links,
    answer: SharedArray,
    open_halos: Callable[..., Halos] = open_halos,
) -> dict[str, str | bool]:
    """The target of one worker: sweeps its rows until the parent ends the run, then writes them into `answer`."""
    problem, rows = settings.problem, settings.problem.slabs(settings.parts)[part]
    source = problem.source()[rows]
    with worker.gpu(settings.backend) as backend:
        slab = backend.slab(np.zeros_like(source), source, problem.spacing)
        exchange = open_halos(worker, settings, part, slab, storage)
        barrier = NeighbourBarrier(worker, links)
        worker.start()
        for sweep in range(1, settings.sweeps + 1):
            change = slab.sweep()
            exchange.publish(sweep)
            barrier.wait()
            exchange.fetch(sweep)
            if sweep % settings.check_every == 0 or sweep == settings.sweeps:
                worker.send(change)
                if not worker.receive():
                    break
        answer.array[rows][1:-1] = slab.values()[1:-1]
        slab.disconnect()
        barrier.wait()
        slab.close()
        return identity(backend)


class NeighbourBarrier:
    """A barrier with the parts above and below."""

    def __init__(self, worker: Worker, links: Links) -> None:
        self._worker = worker
        self._links = [link for link in links if link is not None]

    def wait(self) -> None:
        """Returns when each neighbour has called it as often. Raises StoppedError when the worker is asked to end."""
        try:
            for link in self._links:
                link.send_bytes(b"")
            missing = list(self._links)
            while missing:
                ready = connection.wait([*missing, self._worker.stop.fileno()])
                self._worker.stop.check()
                for link in [link for link in missing if link in ready]:
                    link.recv_bytes()
                    missing.remove(link)
        except (EOFError, OSError) as error:
            self._worker.stop.wait(NEIGHBOUR_SECONDS)
            raise StoppedError("a neighbour is gone") from error
