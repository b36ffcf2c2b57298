"""The clients of one pass, as their parent sees them.

Guarantees: no figure is measured before NVML has confirmed that the clients share the GPU in the mode that is measured,
and all clients take their window from one clock.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from gpushare_workload.backend.work import Load, Work
from gpushare_workload.bench.client import ClientInfo, LoadRequest, serve
from gpushare_workload.bench.loop import LoopResult, Window
from gpushare_workload.bench.plan import BenchPlan, Pass
from gpushare_workload.events import WrongError
from gpushare_workload.gpus.monitor import GpuMonitor
from gpushare_workload.mps.listed import lasting, wrong_client
from gpushare_workload.mps.modes import SharingMode
from gpushare_workload.processes import common_start
from gpushare_workload.processes.outcomes import WorkerError
from gpushare_workload.processes.stopping import Stop
from gpushare_workload.processes.team import Team
from gpushare_workload.results.document import ClientResult, Launch, Run

READY_SECONDS = 120.0
PREPARE_SECONDS = 60.0
LEAD_SECONDS = 0.05
"""Time from the request to the common start: longer than the messages to all clients take."""
FINISH_SECONDS = 60.0
"""Time for the last launch and the check of its result: many clients on a slow link take a while."""

Answer = TypeVar("Answer")


class ClientGroup:
    """Use it within `with team`: the team ends the clients, whatever happens."""

    def __init__(self, team: Team, bench_pass: Pass, stop: Stop, monitor: GpuMonitor | None) -> None:
        self._team, self._pass, self._stop, self._monitor = team, bench_pass, stop, monitor
        self.clients: list[ClientInfo] = []

    def start(self, choice: str, environment: Mapping[str, str]) -> None:
        """Returns when every client has its context. Raises WrongError for a client in another mode than the pass."""
        for number in range(self._pass.processes):
            self._team.start(serve, choice, name=f"client {number}", environment=environment)
        self.clients = self._gather(ClientInfo, READY_SECONDS)
        if self._monitor is not None:
            self._check_mode(self._monitor)

    def run(self, load: Load, plan: BenchPlan, begin: float | None = None) -> tuple[Run, Work]:
        """(one run of the load, the work of one launch).

        Clocks, memory and utilisation are those in the middle of the window. `begin` is the common start in seconds
        since 1970; None: as soon as all clients are ready.
        """
        lanes = self._pass.clients if self._pass.mode is SharingMode.STREAMS else 1
        self._team.send_all(LoadRequest(load, lanes))
        work = self._gather(Work, PREPARE_SECONDS)[0]
        moment = time.monotonic() + (LEAD_SECONDS if begin is None else common_start.delay(begin, time.time()))
        self._team.send_all(Window.of(moment, plan.warmup, plan.window))
        self._stop.wait(moment + plan.warmup + plan.window / 2 - time.monotonic())
        self._stop.check()
        clocks, memory, busy = self._read_monitor()
        run = Run(
            repeat=self._pass.repeat,
            mode=self._pass.mode,
            clients=self._pass.clients,
            threads=self._pass.threads,
            load=load,
            window=plan.window,
            launch=Launch(work.blocks, work.flops, work.bytes),
            results=tuple(self._results(self._gather(LoopResult, plan.window + FINISH_SECONDS), load)),
            sms=self.clients[0].device.sms,
            memory_mib=memory,
            busy_percent=busy,
            clocks=clocks,
        )
        return run, work

    def finish(self) -> None:
        """Lets the clients leave the GPU in good order."""
        self._team.finish(FINISH_SECONDS)

    def _check_mode(self, monitor: GpuMonitor) -> None:
        pids = [client.pid for client in self.clients]

        def problem() -> str:
            return wrong_client(self._pass.mode, pids, monitor.processes())

        if wrong := lasting(problem, self._stop.wait):
            raise WrongError(wrong)

    def _results(self, counted: Sequence[LoopResult], load: Load) -> list[ClientResult]:
        results: list[ClientResult] = []
        for client, loop in zip(self.clients, counted, strict=True):
            for rounds, latency in zip(loop.counted, loop.latencies, strict=True):
                results.append(ClientResult(len(results), client.pid, rounds * load.depth, latency, loop.late_ns / 1e6))
        return results

    def _read_monitor(self) -> tuple[Mapping[str, Any], Mapping[int, int], float | None]:
        """(clocks, MiB by PID, busy percent). No memory unless NVML lists all clients: in a container it does not."""
        if self._monitor is None:
            return {}, {}, None
        processes = self._monitor.processes()
        listed = {**processes.others, **processes.mps_clients}
        pids = [client.pid for client in self.clients]
        memory = {pid: listed[pid] for pid in pids} if all(pid in listed for pid in pids) else {}
        return self._monitor.clocks(), memory, self._monitor.usage().busy_percent

    def _gather(self, kind: type[Answer], seconds: float) -> list[Answer]:
        """One answer of each client, in the order of the clients. Raises the error that ended a client without one."""
        answers = self._team.gather(seconds)
        for index, answer in enumerate(answers):
            if not isinstance(answer, kind):
                raise WorkerError(f"client {index} sent {type(answer).__name__} out of turn")
        return answers
