"""The clients of one pass, seen from their parent: started, told what to run, timed by one clock, watched by NVML."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from gpushare_workload import start
from gpushare_workload.backend.work import Work
from gpushare_workload.bench.client import Hello, Order, Prepared, serve
from gpushare_workload.bench.gpu import GpuView, Processes
from gpushare_workload.bench.loop import Counted, Window
from gpushare_workload.bench.plan import Load, Mode, Pass, Plan
from gpushare_workload.bench.results import ClientResult, Launch
from gpushare_workload.outcomes import WorkerError
from gpushare_workload.report import WrongError
from gpushare_workload.stopping import Stop
from gpushare_workload.workers import Team

READY_SECONDS = 120.0
PREPARE_SECONDS = 60.0
LEAD_SECONDS = 0.05
"""From the order to begin to the common start: longer than the messages to all clients take."""
FINISH_SECONDS = 60.0
"""For the last launch and the check of its result: many clients of a slow link take a while."""
LISTED_SECONDS = 1.0
GRAPH_KERNELS = 16
"""In one captured graph."""

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Measured:
    """One run. `clocks` and `memory` were taken in the middle of the window; empty without a view of the GPU."""

    work: Work
    launch: Launch
    results: tuple[ClientResult, ...]
    clocks: Mapping[str, Any]
    memory_mib: Mapping[int, int]


class Crew:
    """`with` a Team around it: that one ends the clients, whatever happens."""

    def __init__(self, team: Team, one: Pass, stop: Stop, view: GpuView | None) -> None:
        self._team, self._pass, self._stop, self._view = team, one, stop, view
        self.hellos: list[Hello] = []

    def start(self, choice: str, environment: Mapping[str, str]) -> None:
        """Returns when every client has its context, and is found to share the GPU in the way that is measured."""
        for number in range(self._pass.processes):
            self._team.start(serve, choice, name=f"client {number}", environment=environment)
        self.hellos = self._gather(Hello, READY_SECONDS)
        if self._view is not None:
            self._check_mode(self._view)

    def run(self, load: Load, plan: Plan, begin: float | None = None) -> Measured:
        """`begin` is the common start in seconds since 1970; None: as soon as everybody is ready."""
        lanes = self._pass.clients if self._pass.mode is Mode.STREAMS else 1
        graph = GRAPH_KERNELS if self._pass.mode is Mode.GRAPHS else 0
        self._send(Order(load, lanes, graph))
        work = self._gather(Prepared, PREPARE_SECONDS)[0].work
        moment = time.monotonic() + (LEAD_SECONDS if begin is None else start.delay(begin, time.time()))
        self._send(Window.of(moment, plan.warmup, plan.window))
        self._stop.wait(moment + plan.warmup + plan.window / 2 - time.monotonic())
        self._stop.check()
        clocks, memory = self._watch()
        counted = self._gather(Counted, plan.window + FINISH_SECONDS)
        launch = Launch(work.blocks, work.flops, work.bytes, graph or 1)
        return Measured(work, launch, tuple(self._results(counted, launch)), clocks, memory)

    def finish(self) -> None:
        """The clients leave the GPU in good order."""
        self._send(None)
        self._team.results(FINISH_SECONDS)

    def _check_mode(self, view: GpuView) -> None:
        """A moment's patience: NVML may list a client of MPS as one a little after it has its context."""
        pids = [hello.pid for hello in self.hellos]
        try:
            check_mode(self._pass.mode, pids, view.processes())
        except WrongError:
            self._stop.wait(LISTED_SECONDS)
            check_mode(self._pass.mode, pids, view.processes())

    def _results(self, counted: Sequence[Counted], launch: Launch) -> list[ClientResult]:
        results: list[ClientResult] = []
        for hello, one in zip(self.hellos, counted, strict=True):
            for latency in one.latencies:
                kernels = latency.count * launch.kernels
                results.append(ClientResult(len(results), hello.pid, kernels, latency, one.late_ns / 1e6))
        return results

    def _watch(self) -> tuple[Mapping[str, Any], Mapping[int, int]]:
        if self._view is None:
            return {}, {}
        found = self._view.processes()
        everybody = {**found.others, **found.mps_clients}
        pids = [hello.pid for hello in self.hellos]
        memory = {pid: everybody[pid] for pid in pids} if all(pid in everybody for pid in pids) else {}
        return self._view.clocks(), memory

    def _send(self, message: Any) -> None:
        for index in range(len(self._team)):
            self._team.send(index, message)

    def _gather(self, kind: type[Answer], seconds: float) -> list[Answer]:
        """One answer of each client, in their order. Raises what ended a client that gives none."""
        answers: dict[int, Answer] = {}
        end = time.monotonic() + seconds
        while len(answers) < len(self._team):
            index, answer = self._team.receive(max(0.0, end - time.monotonic()))
            if not isinstance(answer, kind):
                raise WorkerError(f"client {index} sent {type(answer).__name__} out of turn")
            answers[index] = answer
        return [answers[index] for index in sorted(answers)]


def check_mode(mode: Mode, pids: Sequence[int], found: Processes) -> None:
    """A client that cannot reach the daemon runs without MPS and does not say so; NVML tells. Raises WrongError.

    Nothing is said of PIDs that NVML does not list: in a container they are others than NVML's.
    """
    for pid in pids:
        if mode.under_mps and pid in found.others:
            raise WrongError(f"{mode.value}: client PID {pid} is on the GPU without MPS")
        if mode is Mode.TIME_SLICING and pid in found.mps_clients:
            raise WrongError(f"{mode.value}: client PID {pid} is a client of MPS")
