"""limits: are my limits real?

Commonly claimed: a pod with a fraction of a GPU "sees" that fraction. Under MPS, CUDA shows the client its part of the
SMs, `cudaMemGetInfo` shows the limit as free memory and the whole GPU as total, and an allocation above the limit fails
with an error. What was measured of each is in docs/limits.md.

The number of SMs that CUDA shows proves nothing if a program partitions contexts itself; the throughput of a kernel
that saturates the GPU does. So the throughput is measured too, as a fraction of the whole GPU's peak. It must not
exceed the fraction of the SMs that was granted, but for a small tolerance. It may be lower: busy neighbours and clocks
below the highest reduce it.

Exit code 0 means that every granted limit is in force for this process; `checked` names those that were compared. Where
nothing was granted, or nothing of it can be seen, there is no such answer, and the exit code is 2.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

from gpushare_workload.backend import Backend, open_backend
from gpushare_workload.backend.work import H200_SMS, Grid, LoadKind, Work
from gpushare_workload.events import JsonLines, WrongError
from gpushare_workload.gpus.grant import MIB, ContainerGrant, granted_sms
from gpushare_workload.processes.stopping import Stop
from gpushare_workload.scenarios.options import check_bounds

NAME = "limits"
ABOVE = 64 * MIB
"""How far above the limit an allocation is tried: more than any rounding, little enough to prove the bound."""
TOLERANCE = 1.05
"""A tolerance: the peak counts with the highest clock that CUDA shows, and a GPU may exceed that briefly."""

MeasureRate = Callable[[Callable[[], None], Callable[[], None], float], float]
"""`measure(launch, wait, seconds)`: launches per second."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--hold", type=float, default=0.0, metavar="SECONDS", help="stay a client for that long (default: %(default)s)"
    )
    parser.add_argument(
        "--throughput",
        type=float,
        default=0.5,
        metavar="SECONDS",
        help="how long to measure the throughput on a GPU; 0: not at all (default: %(default)s)",
    )


def run(arguments: argparse.Namespace, events: JsonLines, stop: Stop) -> None:
    check_bounds(arguments, hold=0, throughput=0)
    backend = open_backend(arguments.backend)
    try:
        grant = ContainerGrant.from_environment()
        if not check(backend, grant, events):
            raise ValueError(why_unchecked(grant))
        if arguments.throughput and backend.timed and not stop.asked():
            check_throughput(backend, grant, arguments.throughput, events)
        stop.wait(arguments.hold)
    finally:
        backend.close()


def check(backend: Backend, grant: ContainerGrant, events: JsonLines) -> list[str]:
    """Emits the granted and the observed limits; returns the names of those that could be compared.

    Raises WrongError naming each limit that is not in force.
    """
    observed = observe(backend, grant)
    problems, checked = compare(grant, observed), comparable(grant, observed)
    events.emit(
        "limits",
        backend=backend.name,
        simulated=backend.simulated,
        granted=grant.as_json(),
        observed=observed,
        checked=checked,
        problems=problems,
    )
    if problems:
        raise WrongError("; ".join(problems))
    return checked


def rate(launch: Callable[[], None], wait: Callable[[], None], seconds: float) -> float:
    """Launches per second in a closed loop, after one launch that loads the kernel."""
    launch()
    wait()
    began, launches = time.monotonic(), 0
    while time.monotonic() - began < seconds:
        launch()
        wait()
        launches += 1
    return launches / (time.monotonic() - began)


def check_throughput(
    backend: Backend, grant: ContainerGrant, seconds: float, events: JsonLines, measure: MeasureRate = rate
) -> None:
    """Emits the fraction of the GPU's peak that a saturating kernel reaches. Raises WrongError above the grant."""
    device, peaks = backend.device(), backend.peaks()
    task = backend.prepare(Work(LoadKind.COMPUTE, Grid.SATURATING.blocks(device.total_sms or device.sms or H200_SMS)))
    launches = 0

    def launch() -> None:
        nonlocal launches
        launches += 1
        task.launch()

    try:
        per_second = measure(launch, backend.synchronize, seconds)
        if wrong := task.wrong(launches):
            raise WrongError(wrong)
    finally:
        task.close()
    share = per_second * task.work.flops / peaks.flops if peaks.flops else None
    granted = granted_share(grant, device.total_sms)
    events.emit(
        "throughput",
        launches_per_second=round(per_second, 1),
        tflops=round(per_second * task.work.flops / 1e12, 3),
        share_of_peak=share and round(share, 4),
        granted_share=granted and round(granted, 4),
    )
    if share is not None and share > (granted or 1.0) * TOLERANCE:
        raise WrongError(
            f"{share:.1%} of the GPU's peak throughput was reached, {granted or 1.0:.1%} of its SMs were granted"
        )


def granted_share(grant: ContainerGrant, total: int | None) -> float | None:
    """The granted fraction of the SMs in 0..1; None if all were granted or their number is unknown."""
    if grant.threads is None or not total:
        return None
    return min(total, granted_sms(total, grant.threads)) / total


def observe(backend: Backend, grant: ContainerGrant) -> dict[str, Any]:
    """Memory in bytes. `above_refused`: an allocation above the grant failed; None without a grant of memory."""
    device = backend.device()
    observed: dict[str, Any] = {
        "product": device.product,
        "uuid": device.uuid,
        "sms": device.sms,
        "total_sms": device.total_sms,
        "free": device.free,
        "total": device.total,
        "above_refused": None,
    }
    if grant.process_memory is not None:
        observed["above_refused"] = not backend.try_allocate(grant.process_memory + ABOVE)
    return observed


def comparable(grant: ContainerGrant, observed: dict[str, Any]) -> list[str]:
    """The granted limits, by name, of which the process sees enough to compare them."""
    seen = {
        "threads": grant.threads is not None and observed["total_sms"] and observed["sms"] is not None,
        "memory": grant.process_memory is not None,
    }
    return [name for name, compared in seen.items() if compared]


def why_unchecked(grant: ContainerGrant) -> str:
    """Says why no limit could be compared, and what to do."""
    if grant.threads is not None:
        return f"GPUSHARE_THREADS={grant.threads}: no GPU shows its SMs here, so nothing was checked"
    return (
        "GPUSHARE_THREADS and GPUSHARE_MEMORY_BYTES are not set: nothing was granted, so nothing was checked; run this "
        "in a slot of a share"
    )


def compare(grant: ContainerGrant, observed: dict[str, Any]) -> list[str]:
    """One sentence for each granted limit that is not in force; empty if all are."""
    problems = []
    total = observed["total_sms"]
    if grant.threads is not None and total and observed["sms"] is not None:
        granted = granted_sms(total, grant.threads)
        if observed["sms"] != granted:
            problems.append(f"{observed['sms']} SMs are visible, {grant.threads} % of {total} are {granted}")
    memory = grant.process_memory
    if memory is not None:
        if observed["free"] > memory:
            problems.append(f"{observed['free']} bytes are free, only {memory} were granted")
        if not observed["above_refused"]:
            problems.append(f"an allocation of {memory + ABOVE} bytes was not refused")
    return problems
