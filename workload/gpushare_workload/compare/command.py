"""compare: does sharing help my program?

Runs copies of any program on one GPU: one alone, then several in time slices, under MPS, and under MPS with caps. Says
in one sentence whether sharing pays, and which GpuShare to apply. The GPU must be unused; everything that is started
here ends here. docs/compare.md goes through it.

  gpushare-workload compare --rate-json rate --seconds 5 -- python3 serve_model.py
"""

import argparse
import os
import shlex
import socket
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpushare.kubectl.rules.trial.cases import CaseOutcome, Ending, TrialMode, counted, news, next_run
from gpushare_workload.bench import environment
from gpushare_workload.bench.daemon.control import DaemonError
from gpushare_workload.bench.daemon.own_daemon import OwnDaemon, prepared
from gpushare_workload.bench.mps_setup import OwnDaemonSetup
from gpushare_workload.bench.output import write_json
from gpushare_workload.compare.options import CompareRequest, add_arguments, request_of
from gpushare_workload.compare.result import Comparison, read
from gpushare_workload.compare.runner import CaseRunner
from gpushare_workload.events import JsonLines
from gpushare_workload.gpus.inventory import open_monitor
from gpushare_workload.gpus.monitor import GpuMonitor, GpuMonitorError
from gpushare_workload.gpus.mps import reachable_daemon
from gpushare_workload.processes.outcomes import WorkerError
from gpushare_workload.processes.stopping import Stop

__all__ = ["NAME", "add_arguments", "run"]

NAME = "compare"


def run(arguments: argparse.Namespace, events: JsonLines, stop: Stop) -> None:
    """Raises the error that ended the comparison, after writing what was measured until then to `--json`.

    WorkerError: the program fails alone, so there is nothing to compare.
    """
    if arguments.read is not None:
        _write(_earlier(arguments), events)
        return
    request = request_of(arguments)
    try:
        monitor = open_monitor()
        if monitor is None:
            raise ValueError("no GPU: NVML is not there or shows none, so there is nothing to compare on")
        if (problem := foreign_daemon(os.environ)) is not None:
            raise ValueError(problem)
        with prepared(monitor, exclusive=False) as (daemon, cleared):
            for sentence in cleared:
                _say(sentence)
            comparison = _compare(request, monitor, daemon, stop, events)
    except (DaemonError, GpuMonitorError) as error:
        raise WorkerError(str(error)) from error
    for one in comparison.outcomes:
        if one.case.mode is TrialMode.ALONE and one.ending is not Ending.MEASURED:
            program = shlex.join(request.programs[one.case.copies.index(1)])
            raise WorkerError(f"{program!r} fails alone, so there is nothing to compare: {one.reason}")


def _earlier(arguments: argparse.Namespace) -> Comparison:
    """Raises ValueError naming the file that cannot be read."""
    if arguments.program:
        raise ValueError("--read: judges an earlier comparison; leave COMMAND out")
    try:
        found = read(arguments.read.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"--read {arguments.read}: {error}") from None
    return replace(found, request=replace(found.request, json=arguments.json, picture=arguments.png))


def foreign_daemon(variables: Mapping[str, str]) -> str | None:
    """A sentence about the MPS daemon that programs here would reach by default; None if there is none."""
    directory = reachable_daemon(variables)
    if directory is None:
        return None
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(2.0)
        try:
            probe.connect(str(directory / "control"))
        except ConnectionRefusedError:  # nobody serves it any more
            return None
        except OSError:  # a socket of another type or owner is one that somebody serves
            pass
    return (
        f"an MPS daemon runs already, at {directory}: end it (echo quit | nvidia-cuda-mps-control), or measure "
        "in a share with `kubectl gpushare trial`"
    )


def _compare(
    request: CompareRequest, monitor: GpuMonitor, daemon: OwnDaemon, stop: Stop, events: JsonLines
) -> Comparison:
    runner, outcomes, ended = CaseRunner(request, daemon, monitor, stop), list[CaseOutcome](), ""
    said = set[str]()
    described = environment.describe(monitor, OwnDaemonSetup(daemon), None)
    if monitor.simulated:
        _say("The GPU is simulated: copies, limits and clean-up are real, times are not.")

    def result() -> Comparison:
        return Comparison(request, described, not monitor.simulated, tuple(outcomes), ended)

    try:
        while (following := next_run(request.plan, outcomes)) is not None:
            repeat, case = following
            _say(f"repeat {repeat + 1}: {counted(case)}, {case.mode.value}")
            outcomes.append(one := runner.run_case(case, repeat))
            for note in news(one.notes, said):
                _say(f"note: {note}")
            events.emit("run", mode=case.mode.value, copies=list(case.copies), repeat=repeat,
                        ending=one.ending.value, rates=[window.rates for window in one.windows],
                        timed=not monitor.simulated)  # fmt: skip
    except Exception as error:
        ended = str(error) or type(error).__name__
        raise
    finally:
        _write(result(), events)
    return result()


def _write(comparison: Comparison, events: JsonLines) -> None:
    if comparison.request.json is not None:
        write_json(comparison.request.json, comparison)
    if not comparison.outcomes:
        return
    verdict = comparison.verdict
    events.emit("verdict", answer=verdict.answer.value, sentence=verdict.sentence, share=comparison.share,
                timed=comparison.timed)  # fmt: skip
    _say(comparison.as_text())
    if comparison.request.picture is not None:
        _draw(comparison, comparison.request.picture)


def _draw(comparison: Comparison, path: Path) -> None:
    try:
        from gpushare_workload.compare.picture import draw, save
    except ModuleNotFoundError as error:
        _say(f"no picture: it needs {(error.name or '').partition('.')[0]}: pip install 'gpushare[report]'")
        return
    figure: Any = draw(comparison)
    if figure is None:
        _say("no picture: there is no time to draw")
        return
    save(figure, path)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
