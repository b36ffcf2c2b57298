"""Results as a benchmark leaves them, with figures that are easy to compute by hand."""

from collections.abc import Sequence
from typing import Any

from gpushare_workload.backend.work import Grid, Load, LoadKind
from gpushare_workload.mps.modes import SharingMode
from gpushare_workload.results.document import ClientResult, Document, Launch, Run
from gpushare_workload.results.histogram import Histogram

SMALL = Load(LoadKind.COMPUTE, Grid.SMALL)


def run(
    mode: SharingMode = SharingMode.MPS,
    kernels: Sequence[int] = (100, 100),
    repeat: int = 0,
    latency_ns: int = 50_000,
    **changes: Any,
) -> Run:
    """A run of one second: `kernels` are those of each client, its rate too. At most 1000 latencies each."""
    threads = {SharingMode.MPS: 100.0, SharingMode.MPS_EQUAL_CAPS: 100 / len(kernels)}.get(mode)
    results = tuple(
        ClientResult(number, 1000 + number, count, Histogram.of([latency_ns] * min(count, 1000)), late_ms=0.1)
        for number, count in enumerate(kernels)
    )
    fields: dict[str, Any] = {
        "repeat": repeat, "mode": mode, "clients": len(kernels), "threads": threads, "load": SMALL, "window": 1.0,
        "launch": Launch(blocks=8, flops=1000, bytes_moved=0), "results": results,
    }  # fmt: skip
    return Run(**{**fields, **changes})


def document(*runs: Run, **changes: Any) -> Document:
    fields: dict[str, Any] = {
        "backend": "cupy", "simulated": False, "environment": {"gpu": {"product": "NVIDIA H200"}},
        "command": ("gpushare-workload", "bench"), "plan": {"seed": 1}, "runs": runs,
    }  # fmt: skip
    return Document(**{**fields, **changes})
