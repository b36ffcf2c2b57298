"""Runs a plan: new clients for each pass, every load of the pass, and a judgement of each run.

Guarantees: a run whose figures cannot be true is refused, since they come from a mistake in the measurement and not
from a fast GPU. A refused run is kept and counts nowhere.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from gpushare_workload.backend.work import Peaks, Work, implausible
from gpushare_workload.bench.clients.client import ClientInfo
from gpushare_workload.bench.clients.group import ClientGroup, RunMeasurement
from gpushare_workload.bench.mps_setup import MpsSetup
from gpushare_workload.bench.plan import BenchPlan, Load, Pass, passes
from gpushare_workload.bench.pods import Pods, begins
from gpushare_workload.bench.results.document import Run
from gpushare_workload.gpus.monitor import GpuMonitor
from gpushare_workload.processes.stopping import Stop
from gpushare_workload.processes.team import Team

LATE_MS = 20.0
"""A client that starts later than this gets a warning; the warm-up makes up for less."""
HARMLESS_REASONS = frozenset({"idle", "applications-clocks", "display-clock", "sync-boost"})
"""Reasons for a clock below the highest that are settings, or that end with the work."""


class PassObserver(Protocol):
    """Shows the progress."""

    def began(self, one: Pass) -> None: ...

    def done(self, one: Pass) -> None: ...


@dataclass(frozen=True, slots=True)
class RunSettings:
    """What a plan runs on. `introduce` is called with the first client of each pass."""

    setup: MpsSetup
    monitor: GpuMonitor | None
    backend: str
    pods: Pods | None
    introduce: Callable[[ClientInfo], None]


def runs(plan: BenchPlan, settings: RunSettings, stop: Stop, observer: PassObserver) -> Iterator[Run]:
    """Raises the error that ended a client, WrongError for a wrong result, StoppedError when asked to end."""
    for one in passes(plan):
        observer.began(one)
        yield from _pass(one, plan, settings, stop)
        observer.done(one)


def _pass(one: Pass, plan: BenchPlan, settings: RunSettings, stop: Stop) -> Iterator[Run]:
    with settings.setup.ready_for(one) as environment, Team(stop) as team:
        group = ClientGroup(team, one, stop, settings.monitor)
        group.start(settings.backend, environment)
        settings.introduce(group.clients[0])
        for number, load in enumerate(one.loads):
            begin = begins(settings.pods, plan, one.repeat, number) if settings.pods else None
            yield _judged(one, load, plan, group.clients[0], group.run(load, plan, begin))
        group.finish()


def _judged(one: Pass, load: Load, plan: BenchPlan, client: ClientInfo, measured: RunMeasurement) -> Run:
    late = max(result.late_ms for result in measured.results)
    warnings = clock_warnings(measured.clocks.get("reasons", ()))
    if late > LATE_MS:
        warnings = (*warnings, f"a client started {late:.0f} ms late")
    run = Run(
        repeat=one.repeat,
        mode=one.mode,
        clients=one.clients,
        threads=one.threads,
        load=load,
        window=plan.window,
        launch=measured.launch,
        results=measured.results,
        sms=client.device.sms,
        memory_mib=measured.memory_mib,
        busy_percent=measured.busy_percent,
        clocks=measured.clocks,
        warnings=warnings,
    )
    return run.refused_for(refusal(run, measured.work, client.peaks)) if client.timed else run


def refusal(run: Run, work: Work, peaks: Peaks) -> str:
    """A sentence that says why the run's figures cannot be true; empty if they can. Pure."""
    silent = [result.client for result in run.results if not result.kernels]
    if silent:
        return f"client {silent[0]} ran nothing within the {run.window:g} s that count: it started after them"
    return implausible(work, run.total_rate, peaks) or ""


def clock_warnings(reasons: Sequence[str]) -> tuple[str, ...]:
    """One sentence for each reason for which the GPU ran slower than its settings allow. Pure."""
    return tuple(f"clocks were throttled: {reason}" for reason in reasons if reason not in HARMLESS_REASONS)
