"""Runs a plan: new clients for each pass, every load of the pass, and a judgement of each run.

Guarantees: a run whose figures cannot be true is refused, since they come from a mistake in the measurement and not
from a fast GPU. A refused run is kept and counts nowhere.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from gpushare_workload.backend.work import Peaks, Work, implausible
from gpushare_workload.bench.client import ClientInfo
from gpushare_workload.bench.group import ClientGroup
from gpushare_workload.bench.plan import BenchPlan, Pass, passes
from gpushare_workload.bench.pods import Pods, begins
from gpushare_workload.bench.progress import PassProgress
from gpushare_workload.gpus.monitor import GpuMonitor
from gpushare_workload.mps.modes import MpsSetup
from gpushare_workload.processes.stopping import Stop
from gpushare_workload.processes.team import Team
from gpushare_workload.results.document import Run

LATE_MS = 20.0
"""A client that starts later than this gets a warning; the warm-up makes up for less."""
HARMLESS_REASONS = frozenset({"idle", "applications-clocks", "display-clock", "sync-boost"})
"""Reasons for a clock below the highest that are settings, or that end with the work."""


@dataclass(frozen=True, slots=True)
class RunSettings:
    """What a plan runs on. `introduce` is called with the first client of each pass."""

    setup: MpsSetup
    monitor: GpuMonitor | None
    backend: str
    pods: Pods | None
    introduce: Callable[[ClientInfo], None]


def runs(plan: BenchPlan, settings: RunSettings, stop: Stop, progress: PassProgress) -> Iterator[Run]:
    """Raises the error that ended a client, WrongError for a wrong result, StoppedError when asked to end."""
    for bench_pass in passes(plan):
        progress.began(bench_pass)
        yield from _pass(bench_pass, plan, settings, stop)
        progress.done(bench_pass)


def _pass(bench_pass: Pass, plan: BenchPlan, settings: RunSettings, stop: Stop) -> Iterator[Run]:
    with settings.setup.ready_for(bench_pass.threads) as environment, Team(stop) as team:
        group = ClientGroup(team, bench_pass, stop, settings.monitor)
        group.start(settings.backend, environment)
        settings.introduce(group.clients[0])
        for number, load in enumerate(bench_pass.loads):
            begin = begins(settings.pods, plan, bench_pass.repeat, number) if settings.pods else None
            yield judged(*group.run(load, plan, begin), group.clients[0])
        group.finish()


def judged(run: Run, work: Work, client: ClientInfo) -> Run:
    """The run with its warnings, and with the reason why its figures cannot be true, if so. Pure."""
    late = max(result.late_ms for result in run.results)
    warnings = clock_warnings(run.clocks.get("reasons", ()))
    if late > LATE_MS:
        warnings = (*warnings, f"a client started {late:.0f} ms late")
    return replace(run, warnings=warnings, refused=refusal(run, work, client.peaks) if client.timed else "")


def refusal(run: Run, work: Work, peaks: Peaks) -> str:
    """A sentence that says why the run's figures cannot be true; empty if they can. Pure."""
    silent = [result.client for result in run.results if not result.kernels]
    if silent:
        return f"client {silent[0]} ran nothing within the {run.window:g} s that count: it started after them"
    return implausible(work, run.total_rate, peaks) or ""


def clock_warnings(reasons: Sequence[str]) -> tuple[str, ...]:
    """One sentence for each reason for which the GPU ran slower than its settings allow. Pure."""
    return tuple(f"clocks were throttled: {reason}" for reason in reasons if reason not in HARMLESS_REASONS)
