"""bench: how much does sharing a GPU cost or gain, in each sharing mode?

N clients launch kernels, wait for them and launch the next ones, all at the same time, in each mode: time-slicing (what
a GPU does by itself), MPS, MPS with the SMs divided equally, and N streams in one process. How many kernels a client
launches before it waits (its depth) decides how much sharing gains, so several depths are measured. The results are
throughput, latency, fairness and memory, with their spread over repeats. docs/workload.md explains them.
"""

import argparse
import sys
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpushare_workload.bench import environment, options, output
from gpushare_workload.bench.clients.client import ClientInfo
from gpushare_workload.bench.daemon.control import DaemonError
from gpushare_workload.bench.daemon.own_daemon import prepared
from gpushare_workload.bench.mps_setup import ExistingSetup, MpsSetup, OwnDaemonSetup, chosen
from gpushare_workload.bench.plan import BenchPlan, passes, plan_seconds
from gpushare_workload.bench.pods import Pods, duration, pods_of
from gpushare_workload.bench.progress import duration_text, shown
from gpushare_workload.bench.results.document import Document, Run
from gpushare_workload.bench.results.summary import rows
from gpushare_workload.bench.runner import RunSettings, runs
from gpushare_workload.events import JsonLines, WrongError, without_folders
from gpushare_workload.gpus.inventory import open_monitor
from gpushare_workload.gpus.monitor import GpuMonitor, GpuMonitorError
from gpushare_workload.processes import common_start
from gpushare_workload.processes.outcomes import WorkerError
from gpushare_workload.processes.stopping import Stop

NAME = "bench"
add_arguments = options.add_arguments


def run(arguments: argparse.Namespace, events: JsonLines, stop: Stop) -> None:
    """Raises the error that ended the benchmark, after writing what was measured until then to `--json`."""
    if arguments.exclusive and not arguments.own_daemon:
        raise ValueError("--exclusive: belongs to --own-daemon, which restores the compute mode")
    try:
        monitor = open_monitor()
        with ExitStack() as stack:
            setup = _setup(arguments, monitor, stack)
            plan = options.plan_of(arguments, chosen(arguments.modes, setup))
            pods = pods_of(arguments.pods, arguments.pod, common_start.parse(arguments.start_at), plan)
            _Bench(arguments, plan, setup, monitor, pods).run(events, stop)
    except (DaemonError, GpuMonitorError) as error:
        raise WorkerError(str(error)) from error


def _setup(arguments: argparse.Namespace, monitor: GpuMonitor | None, stack: ExitStack) -> MpsSetup:
    if not arguments.own_daemon:
        return ExistingSetup()
    if monitor is None:
        raise ValueError("--own-daemon: without NVML nothing shows whether somebody uses the GPU")
    daemon, cleared = stack.enter_context(prepared(monitor, arguments.exclusive))
    for sentence in cleared:
        _say(sentence)
    return OwnDaemonSetup(daemon)


class _Bench:
    def __init__(
        self,
        arguments: argparse.Namespace,
        plan: BenchPlan,
        setup: MpsSetup,
        monitor: GpuMonitor | None,
        pods: Pods | None,
    ) -> None:
        self._arguments, self._plan, self._setup, self._monitor, self._pods = arguments, plan, setup, monitor, pods
        self._client: ClientInfo | None = None
        self._runs: list[Run] = []

    def run(self, events: JsonLines, stop: Stop) -> None:
        plan = self._plan
        modes = ", ".join(mode.value for mode in plan.modes)
        count = len(passes(plan)) * len(plan.loads)
        seconds = plan_seconds(plan) if self._pods is None else duration(plan)
        since = "" if self._pods is None else " from the common start"
        _say(f"{modes}; {count} runs, about {duration_text(seconds)}{since} ({self._setup.describe()})")
        settings = RunSettings(self._setup, self._monitor, self._arguments.backend, self._pods, self._introduce)
        ended = "ended before its work was done"
        try:
            with shown(plan) as observer:
                for one in runs(plan, settings, stop, observer):
                    self._runs.append(one)
                    events.emit("run", **_line(one))
            ended = ""
        except Exception as error:
            ended = f"{type(error).__name__}: {error}"
            raise
        finally:
            self._write(ended, events)
        refused = [one.refused for one in self._runs if one.refused]
        if refused:
            raise WrongError(f"{len(refused)} of {count} runs have figures that cannot be true: {refused[0]}")

    def _introduce(self, client: ClientInfo) -> None:
        self._client = self._client or client

    def _write(self, ended: str, events: JsonLines) -> None:
        """`--json -` emits the document as an event: a pod without a volume has only its log."""
        document, found = self._document(ended), rows(self._runs)
        if self._arguments.json == "-":
            events.emit("result", **document.as_json())
        elif self._arguments.json:
            output.write_json(Path(self._arguments.json), document)
        if self._arguments.csv:
            output.write_csv(Path(self._arguments.csv), found)
        if found and not self._pods:
            _say(f"{document.backend}\n{output.table(found, document.simulated)}")
        for warning in sorted({warning for one in self._runs for warning in one.warnings}):
            _say(f"warning: {warning}")

    def _document(self, ended: str) -> Document:
        client = self._client
        return Document(
            backend=client.backend if client else "none",
            simulated=not client.timed if client else False,
            environment=environment.describe(self._monitor, self._setup, client),
            command=("gpushare-workload", *without_folders(sys.argv[1:])),
            plan=_plain(self._plan),
            runs=tuple(self._runs),
            ended=ended,
            group=self._pods.group if self._pods else None,
        )


def _plain(plan: BenchPlan) -> dict[str, Any]:
    return {
        **asdict(plan),
        "modes": [mode.value for mode in plan.modes],
        "loads": [str(load) for load in plan.loads],
    }


def _line(run: Run) -> dict[str, Any]:
    """A run without its histograms."""
    line = run.as_json()
    line["late_ms"] = max(result["late_ms"] for result in line.pop("results"))
    return line


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
