"""compare: does sharing help my program?

Runs copies of any program on one GPU: one alone, then several in time slices, under MPS, and under MPS with caps. Says
in one sentence whether sharing pays, and which GpuShare to apply; or, with --protect, what may run beside a service so
that it keeps its latency. The GPU must be unused; everything that is started
here ends here. docs/compare.md goes through it.

  gpushare-workload compare --rate-json rate --seconds 5 -- python3 serve_model.py
  gpushare-workload compare --rate-json rate --latency-json ms --seconds 20 --slo p99=20ms \\
      --protect 'python3 serve_model.py' --beside 'python3 train.py'
"""

import argparse
import os
import shlex
from dataclasses import replace
from pathlib import Path

from gpushare.kubectl.rules.trial.cases import CaseOutcome, Ending, counted, news, titled
from gpushare.kubectl.rules.trial.records import TrialRecord
from gpushare.kubectl.rules.trial.rows import case_json
from gpushare.kubectl.rules.trial.search import following, offered_rate
from gpushare_workload.compare.options import CompareRequest, add_arguments, request_of
from gpushare_workload.compare.runner import CaseRunner
from gpushare_workload.events import JsonLines, say, without_folders
from gpushare_workload.gpus.inventory import open_monitor
from gpushare_workload.gpus.monitor import GpuMonitor
from gpushare_workload.mps.daemon import OwnDaemon, prepared
from gpushare_workload.mps.obstacles import other_daemon
from gpushare_workload.processes.outcomes import WorkerError
from gpushare_workload.processes.stopping import Stop
from gpushare_workload.results import environment
from gpushare_workload.results.comparison import Comparison, read
from gpushare_workload.results.output import write_json

__all__ = ["NAME", "add_arguments", "run"]

NAME = "compare"


def run(arguments: argparse.Namespace, events: JsonLines, stop: Stop) -> None:
    """Raises the error that ended the comparison, after writing what was measured until then to `--json`.

    WorkerError: the program fails alone, so there is nothing to compare.
    """
    if arguments.read is not None:
        _write(_earlier(arguments), arguments, events)
        return
    request = request_of(arguments)
    monitor = open_monitor()
    if monitor is None:
        raise ValueError("no GPU: NVML is not there or shows none, so there is nothing to compare on")
    if (problem := other_daemon(os.environ)) is not None:
        raise ValueError(problem)
    with prepared(monitor, exclusive=False) as (daemon, cleared):
        for sentence in cleared:
            say(sentence)
        outcomes = _compare(request, monitor, daemon, stop, arguments, events)
    for outcome in outcomes:
        if outcome.case.total == 1 and outcome.ending is not Ending.MEASURED:
            program = shlex.join(request.programs[outcome.case.copies.index(1)])
            raise WorkerError(f"{program!r} fails alone, so there is nothing to compare: {outcome.reason}")


def _earlier(arguments: argparse.Namespace) -> Comparison:
    """Raises ValueError naming the file that cannot be read."""
    if arguments.program:
        raise ValueError("--read: judges an earlier comparison; leave COMMAND out")
    try:
        return read(arguments.read.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"--read {arguments.read}: {error}") from None


def _compare(
    request: CompareRequest,
    monitor: GpuMonitor,
    daemon: OwnDaemon,
    stop: Stop,
    arguments: argparse.Namespace,
    events: JsonLines,
) -> list[CaseOutcome]:
    runner, outcomes, said = CaseRunner(request, daemon, monitor, stop), list[CaseOutcome](), set[str]()
    record = TrialRecord(
        programs=[without_folders(program) for program in request.programs],
        plan=request.plan,
        times=request.times,
        outcomes=(),
        timed=not monitor.simulated,
        environment=environment.describe(monitor, daemon),
        cap=request.cap,
    )
    ended = ""
    if monitor.simulated:
        say("The GPU is simulated: copies, limits and clean-up are real, times are not.")
    say(_estimate(request))
    try:
        while (next_case := following(request.plan, outcomes)) is not None:
            repeat, case = next_case
            say(f"repeat {repeat + 1}: {counted(case)}, {titled(case) if case.way else case.mode.value}")
            rate = offered_rate(request.plan.protect, outcomes)
            outcomes.append(outcome := runner.run_case(case, repeat, rate))
            for note in news(outcome.notes, said):
                say(f"note: {note}")
            events.emit("run", **case_json(case), repeat=repeat,
                        ending=outcome.ending.value, rates=[window.rates for window in outcome.windows],
                        timed=record.timed)  # fmt: skip
    except Exception as error:
        ended = str(error) or type(error).__name__
        raise
    finally:
        _write(Comparison(replace(record, outcomes=outcomes, ended=ended), request.share), arguments, events)
    return outcomes


def _estimate(request: CompareRequest) -> str:
    runs = request.plan.repeats * sum(map(len, request.plan.stages()))
    times = request.times
    if times.window is None:
        return f"up to {runs} runs of the program, each to its end"
    each = times.warmup + times.windows * times.window
    return f"up to {runs} runs: about {runs * each:.0f} s, and the program's start each time"


def _write(comparison: Comparison, arguments: argparse.Namespace, events: JsonLines) -> None:
    if arguments.json is not None:
        write_json(arguments.json, comparison.as_json())
    if not comparison.record.outcomes:
        return
    verdict = comparison.verdict
    events.emit("verdict", answer=verdict.answer.value, sentence=verdict.sentence, share=comparison.share,
                **comparison.pods_json, timed=comparison.record.timed)  # fmt: skip
    say(comparison.as_text())
    if arguments.png is not None:
        _draw(comparison, arguments.png)


def _draw(comparison: Comparison, path: Path) -> None:
    try:
        from gpushare_workload.reporting.figures.comparison import draw, save
    except ModuleNotFoundError as error:
        say(f"no picture: it needs {(error.name or '').partition('.')[0]}: pip install 'gpushare[report]'")
        return
    figure = draw(comparison)
    if figure is None:
        say("no picture: there is no curve over numbers of copies to draw, or no time")
        return
    save(figure, path)
