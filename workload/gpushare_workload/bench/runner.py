"""Runs a plan: a fresh crew for each pass, every load of it, and what is to be said of each run."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from gpushare_workload.bench.client import Hello
from gpushare_workload.bench.crew import Crew, Measured
from gpushare_workload.bench.gpu import GpuView
from gpushare_workload.bench.grounds import Ground
from gpushare_workload.bench.plan import Load, Pass, Plan, passes
from gpushare_workload.bench.plausible import clock_warnings, refusal
from gpushare_workload.bench.pods import Pods, begins
from gpushare_workload.bench.results import Run
from gpushare_workload.stopping import Stop
from gpushare_workload.workers import Team

LATE_MS = 20.0
"""A client that starts later than that after the others shall be told of; the warm-up makes up for less."""


class Watcher(Protocol):
    """Whoever shows how far it is."""

    def began(self, one: Pass) -> None: ...

    def done(self, one: Pass) -> None: ...


@dataclass(frozen=True, slots=True)
class Setting:
    """What a plan runs on. `introduced` is told of the first client of the first pass: backend, device."""

    ground: Ground
    view: GpuView | None
    backend: str
    pods: Pods | None
    introduced: Callable[[Hello], None]


def runs(plan: Plan, setting: Setting, stop: Stop, watcher: Watcher) -> Iterator[Run]:
    """Raises what ended a client, WrongError for a wrong result, StoppedError when asked to end."""
    for one in passes(plan):
        watcher.began(one)
        yield from _pass(one, plan, setting, stop)
        watcher.done(one)


def _pass(one: Pass, plan: Plan, setting: Setting, stop: Stop) -> Iterator[Run]:
    with setting.ground.ready_for(one) as environment, Team(stop) as team:
        crew = Crew(team, one, stop, setting.view)
        crew.start(setting.backend, environment)
        setting.introduced(crew.hellos[0])
        for place, load in enumerate(one.loads):
            begin = begins(setting.pods, plan, one.repeat, place) if setting.pods else None
            yield _told(one, load, plan, crew.hellos[0], crew.run(load, plan, begin))
        crew.finish()


def _told(one: Pass, load: Load, plan: Plan, hello: Hello, measured: Measured) -> Run:
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
        sms=hello.device.sms,
        memory_mib=measured.memory_mib,
        clocks=measured.clocks,
        warnings=warnings,
    )
    return run.but_refused(refusal(run, measured.work, hello.peaks)) if hello.timed else run
