"""One Jacobi run split over processes: the workers' side, and the parent that decides when it is done."""

import time
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing import connection, get_context
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from gpushare_workload import halos, list_server
from gpushare_workload.backend.seam import Field, Slab
from gpushare_workload.halos import Halos, HostHalos, ManagerHalos, Way
from gpushare_workload.identity import identity
from gpushare_workload.poisson import Poisson
from gpushare_workload.shared import SharedArray
from gpushare_workload.stopping import Stop, StoppedError
from gpushare_workload.worker import Worker
from gpushare_workload.workers import START_SECONDS, Team

STALL_SECONDS = 60.0
"""Longest time between two looks at the change."""
NEIGHBOUR_SECONDS = 10.0
"""A worker whose neighbour is gone leaves it to the parent, which knows how it ended, to tell."""


@dataclass(frozen=True, slots=True)
class Settings:
    problem: Poisson
    parts: int
    way: Way
    backend: str
    tolerance: float
    """Done once no value changes by more; 0 runs all sweeps."""
    sweeps: int
    """The most."""
    look_every: int
    """Sweeps between two looks at the change."""


@dataclass(frozen=True, slots=True)
class Refined:
    values: Field
    """(size + 2, size + 2)"""
    sweeps: int
    change: float
    """The largest of any value in the last sweep."""
    seconds: float
    identity: dict[str, str | bool]


def refine(settings: Settings, stop: Stop) -> Refined:
    """Raises UnsupportedError where the backend knows no CUDA IPC."""
    size = settings.problem.size + 2
    answer, parts = SharedArray((size, size)), settings.parts
    with ExitStack() as stack:
        room: Any = None
        if settings.way is Way.MANAGER:
            room = list_server.start(stack.enter_context(Team(stop)), halos.TURNS * parts)
        elif settings.way is Way.HOST:
            room = HostHalos.room(parts, size)
        team = stack.enter_context(Team(stop))
        for part, links in enumerate(_neighbours(parts)):
            team.start(_solve, settings, part, room, links, answer, name=f"slab {part}")
            for link in links:
                if link is not None:
                    link.close()
        if settings.way is Way.IPC:
            _introduce(team, parts)
        team.go()
        began = time.monotonic()
        sweeps, change = _watch(team, settings)
        seconds = time.monotonic() - began
        identities = team.results(STALL_SECONDS)  # after it the answer is whole
        return Refined(answer.array.copy(), sweeps, change, seconds, identities[0])


def _neighbours(parts: int) -> list[tuple[Connection | None, Connection | None]]:
    """For each part its pipe to the one above and to the one below."""
    pipes = [get_context("spawn").Pipe() for _ in range(parts - 1)]
    uppers: list[Connection | None] = [None, *(below for _, below in pipes)]
    lowers: list[Connection | None] = [*(above for above, _ in pipes), None]
    return list(zip(uppers, lowers, strict=True))


def _introduce(team: Team, parts: int) -> None:
    """Hands each part its neighbours' addresses."""
    known: dict[int, Any] = dict(team.receive(START_SECONDS) for _ in range(parts))
    for part in range(parts):
        team.send(part, (known.get(part - 1), known.get(part + 1)))


def _watch(team: Team, settings: Settings) -> tuple[int, float]:
    """Sweeps done and their last change, once all parts were told that it is enough."""
    sweeps = 0
    while True:
        sweeps = min(sweeps + settings.look_every, settings.sweeps)
        change = max(team.receive(STALL_SECONDS)[1] for _ in range(settings.parts))
        more = sweeps < settings.sweeps and change > settings.tolerance
        for part in range(settings.parts):
            team.send(part, more)
        if not more:
            return sweeps, change


def _solve(
    worker: Worker,
    settings: Settings,
    part: int,
    room: Any,
    links: tuple[Connection | None, Connection | None],
    answer: SharedArray,
) -> dict[str, str | bool]:
    problem, rows = settings.problem, settings.problem.slabs(settings.parts)[part]
    source = problem.source()[rows]
    with worker.gpu(settings.backend) as backend:
        slab = backend.slab(np.zeros_like(source), source, problem.spacing)
        exchange = _exchange(worker, settings, part, slab, room)
        neighbours = Neighbours(worker, links)
        worker.start()
        for sweep in range(1, settings.sweeps + 1):
            change = slab.sweep()
            exchange.publish(sweep)
            neighbours.meet()
            exchange.fetch(sweep)
            if sweep % settings.look_every == 0 or sweep == settings.sweeps:
                worker.send(change)
                if not worker.receive():
                    break
        answer.array[rows][1:-1] = slab.values()[1:-1]
        slab.disconnect()
        neighbours.meet()
        slab.close()
        return identity(backend)


def _exchange(worker: Worker, settings: Settings, part: int, slab: Slab, room: Any) -> Halos:
    if settings.way is Way.MANAGER:
        return ManagerHalos(slab, part, settings.parts, room)
    if settings.way is Way.HOST:
        return HostHalos(slab, part, settings.parts, room)
    worker.send(halos.address(slab))
    halos.connect(slab, *worker.receive())
    return slab


class Neighbours:
    """A barrier with those above and below."""

    def __init__(self, worker: Worker, links: tuple[Connection | None, Connection | None]) -> None:
        self._worker = worker
        self._links = [link for link in links if link is not None]

    def meet(self) -> None:
        """Returns once each neighbour called it as often. Raises StoppedError when asked to end."""
        try:
            for link in self._links:
                link.send_bytes(b"")
            missing = list(self._links)
            while missing:
                ready = connection.wait([*missing, self._worker.stop.fileno()])
                self._worker.stop.check()
                for link in [it for it in missing if it in ready]:
                    link.recv_bytes()
                    missing.remove(link)
        except (EOFError, OSError) as error:
            self._worker.stop.wait(NEIGHBOUR_SECONDS)
            raise StoppedError("a neighbour is gone") from error
