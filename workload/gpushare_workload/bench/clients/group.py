"""The clients of one pass, as their parent sees them.

Guarantees: no figure is measured before NVML has confirmed that the clients share the GPU in the mode that is measured,
and all clients take their window from one clock.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from gpushare_workload.backend.work import Work
from gpushare_workload.bench.clients.client import ClientInfo, LoadPrepared, LoadRequest, serve
from gpushare_workload.bench.clients.loop import LoopResult, Window
from gpushare_workload.bench.plan import BenchPlan, Load, Pass, SharingMode
from gpushare_workload.bench.results.document import ClientResult, Launch
from gpushare_workload.events import WrongError
from gpushare_workload.gpus.monitor import GpuMonitor, ListedProcesses
from gpushare_workload.processes import common_start
from gpushare_workload.processes.outcomes import WorkerError
from gpushare_workload.processes.stopping import Stop
from gpushare_workload.processes.team import Team

READY_SECONDS = 120.0
PREPARE_SECONDS = 60.0
LEAD_SECONDS = 0.05
"""From the request to the common start: longer than the messages to all clients take."""
FINISH_SECONDS = 60.0
"""For the last launch and the check of its result: many clients on a slow link take a while."""
LISTED_SECONDS = 1.0
"""NVML may list an MPS client as such only this long after it has its context."""

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class RunMeasurement:
    """One run. `clocks`, `memory_mib` (by PID) and `busy_percent` (of the whole GPU) are those in the middle of the
    window; empty or None without a monitor."""

    work: Work
    launch: Launch
    results: tuple[ClientResult, ...]
    clocks: Mapping[str, Any]
    memory_mib: Mapping[int, int]
    busy_percent: float | None


class ClientGroup:
    """Use it within `with team`: the team ends the clients, whatever happens."""

    def __init__(self, team: Team, one: Pass, stop: Stop, monitor: GpuMonitor | None) -> None:
        self._team, self._pass, self._stop, self._monitor = team, one, stop, monitor
        self.clients: list[ClientInfo] = []

    def start(self, choice: str, environment: Mapping[str, str]) -> None:
        """Returns when every client has its context. Raises WrongError for a client in another mode than the pass."""
        for number in range(self._pass.processes):
            self._team.start(serve, choice, name=f"client {number}", environment=environment)
        self.clients = self._gather(ClientInfo, READY_SECONDS)
        if self._monitor is not None:
            self._check_mode(self._monitor)

    def run(self, load: Load, plan: BenchPlan, begin: float | None = None) -> RunMeasurement:
        """`begin` is the common start in seconds since 1970; None: as soon as all clients are ready."""
        lanes = self._pass.clients if self._pass.mode is SharingMode.STREAMS else 1
        self._send(LoadRequest(load, lanes))
        work = self._gather(LoadPrepared, PREPARE_SECONDS)[0].work
        moment = time.monotonic() + (LEAD_SECONDS if begin is None else common_start.delay(begin, time.time()))
        self._send(Window.of(moment, plan.warmup, plan.window))
        self._stop.wait(moment + plan.warmup + plan.window / 2 - time.monotonic())
        self._stop.check()
        clocks, memory, busy = self._read_monitor()
        counted = self._gather(LoopResult, plan.window + FINISH_SECONDS)
        launch = Launch(work.blocks, work.flops, work.bytes)
        return RunMeasurement(work, launch, tuple(self._results(counted, load)), clocks, memory, busy)

    def finish(self) -> None:
        """Lets the clients leave the GPU in good order."""
        self._send(None)
        self._team.results(FINISH_SECONDS)

    def _check_mode(self, monitor: GpuMonitor) -> None:
        pids = [client.pid for client in self.clients]
        try:
            check_mode(self._pass.mode, pids, monitor.processes())
        except WrongError:
            self._stop.wait(LISTED_SECONDS)
            check_mode(self._pass.mode, pids, monitor.processes())

    def _results(self, counted: Sequence[LoopResult], load: Load) -> list[ClientResult]:
        results: list[ClientResult] = []
        for client, one in zip(self.clients, counted, strict=True):
            for rounds, latency in zip(one.counted, one.latencies, strict=True):
                results.append(ClientResult(len(results), client.pid, rounds * load.depth, latency, one.late_ns / 1e6))
        return results

    def _read_monitor(self) -> tuple[Mapping[str, Any], Mapping[int, int], float | None]:
        """(clocks, MiB by PID, busy percent). No memory unless NVML lists all clients: in a container it does not."""
        if self._monitor is None:
            return {}, {}, None
        found = self._monitor.processes()
        listed = {**found.others, **found.mps_clients}
        pids = [client.pid for client in self.clients]
        memory = {pid: listed[pid] for pid in pids} if all(pid in listed for pid in pids) else {}
        return self._monitor.clocks(), memory, self._monitor.usage().busy_percent

    def _send(self, message: Any) -> None:
        for index in range(len(self._team)):
            self._team.send(index, message)

    def _gather(self, kind: type[Answer], seconds: float) -> list[Answer]:
        """One answer of each client, in the order of the clients. Raises the error that ended a client without one."""
        answers: dict[int, Answer] = {}
        end = time.monotonic() + seconds
        while len(answers) < len(self._team):
            index, answer = self._team.receive(max(0.0, end - time.monotonic()))
            if not isinstance(answer, kind):
                raise WorkerError(f"client {index} sent {type(answer).__name__} out of turn")
            answers[index] = answer
        return [answers[index] for index in sorted(answers)]


def check_mode(mode: SharingMode, pids: Sequence[int], found: ListedProcesses) -> None:
    """Raises WrongError for a client in another mode: one that cannot reach the daemon silently runs without MPS.

    PIDs that NVML does not list are ignored: in a container they differ from NVML's.
    """
    for pid in pids:
        if mode.under_mps and pid in found.others:
            raise WrongError(f"{mode.value}: client PID {pid} is on the GPU without MPS")
        if mode is SharingMode.TIME_SLICING and pid in found.mps_clients:
            raise WrongError(f"{mode.value}: client PID {pid} is a client of MPS")
