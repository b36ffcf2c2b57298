"""Eight pods against eight bare processes, all clients of the same daemon, in turns: the cost of Kubernetes.

Both run the same benchmark with the same limits. A bare process is one of the machine's Python in the node's
namespaces: no container, no cgroup, no other user. The rounds alternate in their order, so that clocks favour neither.
"""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial

from gpushare.api import names
from gpushare.kubectl.rules.trial.spread import Spread
from gpushare_workload.backend.work import Grid
from localcluster.cluster import processes
from measurements.gpu.stack.place import WORK
from measurements.gpu.stack.suite import Findings
from measurements.gpu.stack.suites import parts
from tests.cluster.harness import Harness

SHARE, CLIENTS, THREADS = "throughput", 8, 100
ROUNDS = 3
DEPTHS = (1, 16)
LOADS = ("--kinds", "compute", "--grids", *(grid.value for grid in Grid), "--depths", *map(str, DEPTHS))
CASES = {(grid, depth): f"{grid.value}, depth {depth}" for grid in Grid for depth in DEPTHS}
WINDOW = ("--repeats", "1", "--seconds", "1.0", "--warmup", "0.15")
BENCH = ("bench", "--modes", "mps", "--clients", "1", *LOADS, *WINDOW, "--json", "-", "--pods", str(CLIENTS))
UNTIL_START = 20
"""Seconds for all clients to start, import CuPy and have their context."""
END_SECONDS = 90
AT_LEAST = 0.97
"""The least part of the bare processes' rate, in the median of the rounds."""
NAMESPACES = ("--mount", "--net", "--pid", "--uts", "--ipc")
Rates = dict[str, float]
"""Kernels per second by case."""


def measure(harness: Harness, findings: Findings) -> None:
    findings.figures["rounds"] = rounds = list[dict[str, Rates]]()
    memory_mib = parts.slot_mib(findings.truth["memory_mib"], CLIENTS)
    memory = {"default": f"{memory_mib}Mi"}
    with harness.share(SHARE, per_node=1, per_gpu=CLIENTS, threads={"default": THREADS}, memory=memory) as share:
        share.wait_capacity(CLIENTS)
        for number in range(ROUNDS):
            ways: list[tuple[str, Callable[[], Rates]]] = [
                ("pods", partial(_pods, harness)),
                ("bare", partial(_bare, harness, memory_mib)),
            ]
            rounds.append({name: way() for name, way in (ways if number % 2 == 0 else reversed(ways))})
    figures = {
        case: _compared([turn["pods"][case] for turn in rounds], [turn["bare"][case] for turn in rounds])
        for case in CASES.values()
    }
    findings.figures["kernels_per_second"] = figures
    for case, figure in figures.items():
        # A simulation computes nothing on a GPU: its times are no figures.
        holds = findings.simulated or figure["ratio"] >= AT_LEAST
        findings.expect(f"eight pods reach {AT_LEAST:.0%} of eight bare processes, {case} kernels", holds)


def _compared(pods: list[float], bare: list[float]) -> dict[str, float]:
    """Medians of the rounds, and the spread of the ratio within each round."""
    ratio = Spread.of([mine / other for mine, other in zip(pods, bare, strict=True)])
    return {
        "pods": round(statistics.median(pods), 1),
        "bare": round(statistics.median(bare), 1),
        "ratio": round(ratio.median, 4),
        "ratio_least": round(ratio.least, 4),
        "ratio_largest": round(ratio.largest, 4),
    }


def _pods(harness: Harness) -> Rates:
    with harness.namespace("bench") as tenant:
        start = int(time.time()) + UNTIL_START
        names = [f"bench-{number}" for number in range(CLIENTS)]
        pods = []
        for number, name in enumerate(names):
            command = ["gpushare-workload", *BENCH, "--pod", str(number), "--start-at", str(start)]
            pods.append(tenant.pod(name, SHARE, command=command))
        tenant.start(*pods)
        for name in names:
            tenant.wait_ended(name, UNTIL_START + END_SECONDS)
        return _rates([tenant.kubectl.logs(name) for name in names])


def _bare(harness: Harness, memory_mib: int) -> Rates:
    start = int(time.time()) + UNTIL_START
    enter = ["nsenter", "--target", str(processes.init(harness.layout)), *NAMESPACES]
    environment, started = _environment(harness, memory_mib), list[subprocess.Popen[str]]()
    try:
        for number in range(CLIENTS):
            options = [*BENCH, "--pod", str(number), "--start-at", str(start)]
            command = [*enter, sys.executable, "-m", "gpushare_workload.cli", *options]
            started.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
        return _rates([process.communicate(timeout=UNTIL_START + END_SECONDS)[0] for process in started])
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
                process.wait()


def _environment(harness: Harness, memory_mib: int) -> dict[str, str]:
    """The environment of a client of the share, with the daemon's directory on the node."""
    uuid = parts.gpu_of(harness, SHARE)
    # Without the API's models: the machine's Python need not have what those import.
    client = {
        names.ENV_PIPE_DIRECTORY: f"{names.RUN_DIR}/{uuid}/client",
        names.ENV_LOG_DIRECTORY: "/tmp",
        names.ENV_THREADS: str(THREADS),
        names.ENV_MEMORY: f"0={memory_mib}M",
        names.ENV_SHARE: SHARE,
        names.ENV_GRANTED_THREADS: str(THREADS),
        names.ENV_GRANTED_MEMORY: str(memory_mib << 20),
    }
    return {**os.environ, **client, "CUPY_CACHE_DIR": str(WORK / "cupy")}


def _rates(logs: list[str]) -> Rates:
    """Kernels per second of all clients together, by case. Raises ValueError if one left no result."""
    runs = [run for run in parts.bench_runs(logs) if run.clients == CLIENTS]
    rates = {CASES[run.load.grid, run.load.depth]: run.total_rate for run in runs}
    if missing := set(CASES.values()) - rates.keys():
        raise ValueError(f"no figure of {CLIENTS} clients for {'; '.join(sorted(missing))} kernels")
    return rates
