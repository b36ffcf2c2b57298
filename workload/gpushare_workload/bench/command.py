"""bench: how much does sharing a GPU cost or gain, in each sharing mode?

N clients launch kernels, wait for them and launch the next ones, all at the same time, in each mode: time-slicing (what
a GPU does by itself), MPS, MPS with the SMs divided equally, and N streams in one process. How many kernels a client
launches before it waits (its depth) decides how much sharing gains, so several depths are measured. The results are
throughput, latency, fairness and memory, with their spread over repeats. docs/workload.md explains them.
"""

import argparse
import sys
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gpushare_workload.bench import options
from gpushare_workload.bench.client import ClientInfo
from gpushare_workload.bench.plan import BenchPlan, passes, plan_seconds
from gpushare_workload.bench.pods import Pods, duration, pods_of
from gpushare_workload.bench.progress import duration_text, shown
from gpushare_workload.bench.runner import RunSettings, runs
from gpushare_workload.events import JsonLines, WrongError, say, without_folders
from gpushare_workload.gpus.inventory import open_monitor
from gpushare_workload.gpus.monitor import GpuMonitor
from gpushare_workload.mps.daemon import prepared
from gpushare_workload.mps.modes import ExistingSetup, MpsSetup, chosen
from gpushare_workload.processes import common_start
from gpushare_workload.processes.stopping import Stop
from gpushare_workload.results import environment, output
from gpushare_workload.results.document import Document, Run
from gpushare_workload.results.summary import rows

NAME = "bench"
add_arguments = options.add_arguments


def run(arguments: argparse.Namespace, events: JsonLines, stop: Stop) -> None:
    """Raises the error that ended the benchmark, after writing what was measured until then to `--json`."""
    if arguments.exclusive and not arguments.own_daemon:
        raise ValueError("--exclusive: belongs to --own-daemon, which restores the compute mode")
    monitor = open_monitor()
    with ExitStack() as stack:
        setup = _setup(arguments, monitor, stack)
        plan = options.plan_of(arguments, chosen(arguments.modes, setup))
        pods = pods_of(arguments.pods, arguments.pod, common_start.parse(arguments.start_at), plan)
        _Bench(arguments, plan, setup, monitor, pods).run(events, stop)


def _setup(arguments: argparse.Namespace, monitor: GpuMonitor | None, stack: ExitStack) -> MpsSetup:
    if not arguments.own_daemon:
        return ExistingSetup()
    if monitor is None:
        raise ValueError("--own-daemon: without NVML nothing shows whether somebody uses the GPU")
    daemon, cleared = stack.enter_context(prepared(monitor, arguments.exclusive))
    for sentence in cleared:
        say(sentence)
    return daemon


@dataclass
class _Bench:
    """One benchmark, with what was measured so far."""

    arguments: argparse.Namespace
    plan: BenchPlan
    setup: MpsSetup
    monitor: GpuMonitor | None
    pods: Pods | None
    client: ClientInfo | None = None
    """The first client of all."""
    measured: list[Run] = field(default_factory=list)

    def run(self, events: JsonLines, stop: Stop) -> None:
        plan = self.plan
        modes = ", ".join(mode.value for mode in plan.modes)
        count = len(passes(plan)) * len(plan.loads)
        seconds = plan_seconds(plan) if self.pods is None else duration(plan)
        since = "" if self.pods is None else " from the common start"
        say(f"{modes}; {count} runs, about {duration_text(seconds)}{since} ({self.setup.describe()})")
        settings = RunSettings(self.setup, self.monitor, self.arguments.backend, self.pods, self._introduce)
        ended = "ended before its work was done"
        try:
            with shown(plan) as progress:
                for measured in runs(plan, settings, stop, progress):
                    self.measured.append(measured)
                    events.emit("run", **_line(measured))
            ended = ""
        except Exception as error:
            ended = f"{type(error).__name__}: {error}"
            raise
        finally:
            self._write(ended, events)
        refused = [measured.refused for measured in self.measured if measured.refused]
        if refused:
            raise WrongError(f"{len(refused)} of {count} runs have figures that cannot be true: {refused[0]}")

    def _introduce(self, client: ClientInfo) -> None:
        self.client = self.client or client

    def _write(self, ended: str, events: JsonLines) -> None:
        """`--json -` emits the document as an event: a pod without a volume has only its log."""
        document, table = self._document(ended), rows(self.measured)
        if self.arguments.json == "-":
            events.emit("result", **document.as_json())
        elif self.arguments.json:
            output.write_json(Path(self.arguments.json), document.as_json())
        if self.arguments.csv:
            output.write_csv(Path(self.arguments.csv), table)
        if table and not self.pods:
            say(f"{document.backend}\n{output.table(table, document.simulated)}")
        for warning in sorted({warning for measured in self.measured for warning in measured.warnings}):
            say(f"warning: {warning}")

    def _document(self, ended: str) -> Document:
        client = self.client
        return Document(
            backend=client.backend if client else "none",
            simulated=not client.timed if client else False,
            environment=environment.describe(
                self.monitor, self.setup, client.device if client else None, client.peaks if client else None
            ),
            command=("gpushare-workload", *without_folders(sys.argv[1:])),
            plan=_plain(self.plan),
            runs=tuple(self.measured),
            ended=ended,
            group=self.pods.group if self.pods else None,
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
