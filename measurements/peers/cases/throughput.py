"""Eight pods that launch kernels of two sizes, waiting after each launch or after sixteen, all at the same time."""

import time
from collections.abc import Sequence
from typing import Any

from gpushare_workload.backend.work import Grid
from gpushare_workload.results.document import Run
from gpushare_workload.results.histogram import Histogram
from measurements.gpu.stack.suites import parts
from measurements.peers.ways.way import CLIENTS, Part, Way, clients
from tests.cluster.harness import Harness

GRIDS = (Grid.SMALL, Grid.SATURATING)
REPEATS = 2
SECONDS = ("--seconds", "1.0", "--warmup", "0.2")
UNTIL_START = 9
END_SECONDS = 90


def measure(harness: Harness, way: Way) -> dict[str, Any]:
    """Kernels per second of all eight together, and the time of one launch as a client waits for it."""
    mode = "mps" if Part.DAEMON in way.parts else "time-slicing"
    bench = ("--modes", mode, "--clients", "1", "--kinds", "compute", "--grids", *GRIDS, "--depths", "1", "16")
    with clients(harness, way) as tenant:
        way.hold(tenant)
        start = str(int(time.time()) + UNTIL_START)
        names = [f"bench-{number}" for number in range(CLIENTS)]
        shared = ("--repeats", str(REPEATS), *SECONDS, "--json", "-", "--pods", str(CLIENTS), "--start-at", start)
        command = ["gpushare-workload", "bench", *bench, *shared, "--pod"]
        tenant.start(*(tenant.pod(name, command=[*command, str(number)]) for number, name in enumerate(names)))
        for name in names:
            tenant.wait_ended(name, END_SECONDS)
        return _figures(parts.bench_runs([tenant.kubectl.logs(name) for name in names]))


def _figures(runs: Sequence[Run]) -> dict[str, Any]:
    by_load: dict[str, list[Run]] = {}
    for run in runs:
        by_load.setdefault(f"{run.load.grid.value}, depth {run.load.depth}", []).append(run)
    return {load: _figure(repeats) for load, repeats in sorted(by_load.items())}


def _figure(repeats: list[Run]) -> dict[str, Any]:
    latency = Histogram.merged(result.latency for run in repeats for result in run.results)
    return {
        "kernels_per_second": parts.spread([run.total_rate for run in repeats]),
        "p50_us": round(latency.percentile(50) / 1000, 1),
        "p99_us": round(latency.percentile(99) / 1000, 1),
        "refused": sorted({run.refused for run in repeats if run.refused}),
    }
