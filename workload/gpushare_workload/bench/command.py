"""bench: how much does sharing a GPU cost or gain, by the way in which it is shared?

N clients launch a kernel, wait for it and launch the next one, all at the same time, in each mode: time-slicing (what a
GPU does by itself), MPS, MPS with the SMs divided equally, N streams in one process, and MPS with captured graphs. Told
are throughput, latency, fairness and memory, with their spread over repeats. How to read it: docs/workload.md.
"""

import argparse
import sys
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpushare_workload import start
from gpushare_workload.bench import environment, options, output
from gpushare_workload.bench.client import Hello
from gpushare_workload.bench.control import DaemonError
from gpushare_workload.bench.gpu import GpuView, GpuViewError, open_view
from gpushare_workload.bench.grounds import Found, Ground, Owned, chosen
from gpushare_workload.bench.own_daemon import prepared
from gpushare_workload.bench.plan import Plan, passes, plan_seconds
from gpushare_workload.bench.pods import Pods, duration, pods_of
from gpushare_workload.bench.progress import shown
from gpushare_workload.bench.remaining import told
from gpushare_workload.bench.results import Document, Run
from gpushare_workload.bench.runner import Setting, runs
from gpushare_workload.bench.summary import rows
from gpushare_workload.outcomes import WorkerError
from gpushare_workload.report import Report, WrongError
from gpushare_workload.stopping import Stop

NAME = "bench"
add_arguments = options.add_arguments


def run(arguments: argparse.Namespace, report: Report, stop: Stop) -> None:
    """Raises what ended it; whatever was measured until then is written to --json all the same."""
    if arguments.exclusive and not arguments.own_daemon:
        raise ValueError("--exclusive: belongs to --own-daemon, which restores the compute mode")
    try:
        view = open_view()
        with ExitStack() as stack:
            ground = _ground(arguments, view, stack)
            plan = options.plan_of(arguments, chosen(arguments.modes, ground))
            pods = pods_of(arguments.pods, arguments.pod, start.parse(arguments.start_at), plan)
            _Bench(arguments, plan, ground, view, pods).run(report, stop)
    except (DaemonError, GpuViewError) as error:
        raise WorkerError(str(error)) from error


def _ground(arguments: argparse.Namespace, view: GpuView | None, stack: ExitStack) -> Ground:
    if not arguments.own_daemon:
        return Found()
    if view is None:
        raise ValueError("--own-daemon: there is no NVML here to tell whether anybody uses the GPU")
    daemon, cleared = stack.enter_context(prepared(view, arguments.exclusive))
    for sentence in cleared:
        _say(sentence)
    return Owned(daemon)


class _Bench:
    def __init__(
        self, arguments: argparse.Namespace, plan: Plan, ground: Ground, view: GpuView | None, pods: Pods | None
    ) -> None:
        self._arguments, self._plan, self._ground, self._view, self._pods = arguments, plan, ground, view, pods
        self._hello: Hello | None = None
        self._runs: list[Run] = []

    def run(self, report: Report, stop: Stop) -> None:
        plan = self._plan
        modes = ", ".join(mode.value for mode in plan.modes)
        count = len(passes(plan)) * len(plan.loads)
        seconds = plan_seconds(plan) if self._pods is None else duration(plan)
        since = "" if self._pods is None else " from the common start"
        _say(f"{modes}; {count} runs, about {told(seconds)}{since} ({self._ground.describe()})")
        setting = Setting(self._ground, self._view, self._arguments.backend, self._pods, self._introduced)
        ended = "ended before its work was done"
        try:
            with shown(plan) as watcher:
                for one in runs(plan, setting, stop, watcher):
                    self._runs.append(one)
                    report.emit("run", **_line(one))
            ended = ""
        except Exception as error:
            ended = f"{type(error).__name__}: {error}"
            raise
        finally:
            self._write(ended, report)
        refused = [one.refused for one in self._runs if one.refused]
        if refused:
            raise WrongError(f"{len(refused)} of {count} runs have figures that cannot be true: {refused[0]}")

    def _introduced(self, hello: Hello) -> None:
        self._hello = self._hello or hello

    def _write(self, ended: str, report: Report) -> None:
        """A pod without a volume has nothing but its log: `--json -` is an event there."""
        document, found = self._document(ended), rows(self._runs)
        if self._arguments.json == "-":
            report.emit("result", **document.as_json())
        elif self._arguments.json:
            output.write_json(Path(self._arguments.json), document)
        if self._arguments.csv:
            output.write_csv(Path(self._arguments.csv), found)
        if found and not self._pods:
            _say(f"{document.backend}\n{output.table(found, document.simulated)}")
        for warning in sorted({warning for one in self._runs for warning in one.warnings}):
            _say(f"warning: {warning}")

    def _document(self, ended: str) -> Document:
        hello = self._hello
        return Document(
            backend=hello.backend if hello else "none",
            simulated=not hello.timed if hello else False,
            environment=environment.block(self._view, self._ground, hello),
            command=tuple(sys.argv),
            plan=_plain(self._plan),
            runs=tuple(self._runs),
            ended=ended,
            group=self._pods.group if self._pods else None,
        )


def _plain(plan: Plan) -> dict[str, Any]:
    return {
        **asdict(plan),
        "modes": [mode.value for mode in plan.modes],
        "loads": [f"{load.kind.value} {load.grid.value}" for load in plan.loads],
    }


def _line(run: Run) -> dict[str, Any]:
    """A run without its histograms."""
    line = run.as_json()
    line["late_ms"] = max(result["late_ms"] for result in line.pop("results"))
    return line


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
