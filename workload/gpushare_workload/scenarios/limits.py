"""limits: are my limits real?

Commonly claimed: a pod with a fraction of a GPU "sees" that fraction. What holds under MPS: CUDA shows the client its
share of the SMs, `cudaMemGetInfo` shows the limit as free memory and the whole GPU as total, and an allocation above
the limit fails with error 2. (Measured on an H200: 25 % of 132 SMs are 32, a 16 GiB limit leaves 16,239 MiB free.)

The number of SMs that CUDA shows is no proof where a program partitions contexts itself: then the throughput of a
kernel that saturates the GPU is. So that is measured too, as a share of the whole GPU's peak, which it must not exceed
by more than the granted SMs allow. It may stay below: busy neighbours, or clocks below the highest, lower it. (On the
same H200 at 25 %: 21.9 % of peak, of 24.2 % that 32 SMs are.)

Exit code 0 means that every limit that was granted is in force for this process.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

from gpushare_workload.backend import Backend, open_backend
from gpushare_workload.backend.work import Grid, Kind, Work
from gpushare_workload.bounds import at_least
from gpushare_workload.grant import MIB, Grant, granted_sms
from gpushare_workload.load import SMS
from gpushare_workload.report import Report, WrongError
from gpushare_workload.stopping import Stop

NAME = "limits"
ABOVE = 64 * MIB
"""How far above the limit an allocation is tried: further than any rounding, near enough to prove the bound."""
TOLERANCE = 1.05
"""Of the share of the peak: its clock is the highest that the device tells, which the GPU may pass for a moment."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--hold", type=float, default=0.0, metavar="SECONDS", help="stay a client for that long")
    parser.add_argument(
        "--throughput",
        type=float,
        default=0.5,
        metavar="SECONDS",
        help="measure the throughput for that long, on a GPU; 0: not at all (default: %(default)s)",
    )


def run(arguments: argparse.Namespace, report: Report, stop: Stop) -> None:
    at_least(arguments, hold=0, throughput=0)
    backend = open_backend(arguments.backend)
    try:
        grant = Grant.from_environment()
        check(backend, grant, report)
        if arguments.throughput and backend.timed and not stop.asked():
            check_throughput(backend, grant, arguments.throughput, report)
        stop.wait(arguments.hold)
    finally:
        backend.close()


def check(backend: Backend, grant: Grant, report: Report) -> None:
    """Reports granted and observed limits. Raises WrongError naming each limit that is not in force."""
    observed = observe(backend, grant)
    problems = compare(grant, observed)
    report.emit(
        "limits",
        backend=backend.name,
        simulated=backend.simulated,
        granted=grant.as_json(),
        observed=observed,
        problems=problems,
    )
    if problems:
        raise WrongError("; ".join(problems))


def check_throughput(backend: Backend, grant: Grant, seconds: float, report: Report) -> None:
    """Reports the share of the GPU's peak that a saturating kernel reaches. Raises WrongError above the grant."""
    device, peaks = backend.device(), backend.peaks()
    task = backend.prepare(Work(Kind.COMPUTE, Grid.SATURATING.blocks(device.total_sms or device.sms or SMS)))
    try:
        per_second = rate(task.launch, backend.synchronize, seconds)
        if wrong := task.wrong():
            raise WrongError(wrong)
    finally:
        task.close()
    share = per_second * task.work.flops / peaks.flops if peaks.flops else None
    granted = granted_share(grant, device.total_sms)
    report.emit(
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


def rate(launch: Callable[[], None], wait: Callable[[], None], seconds: float) -> float:
    """Launches per second in a closed loop, after one that loads the kernel."""
    launch()
    wait()
    began, launches = time.monotonic(), 0
    while time.monotonic() - began < seconds:
        launch()
        wait()
        launches += 1
    return launches / (time.monotonic() - began)


def granted_share(grant: Grant, total: int | None) -> float | None:
    """Of the SMs, in 0..1; None where all were granted or nothing tells how many there are."""
    if grant.threads is None or not total:
        return None
    return min(total, granted_sms(total, grant.threads)) / total


def observe(backend: Backend, grant: Grant) -> dict[str, Any]:
    """Memory in bytes. `above_refused`: an allocation above the grant failed; None where none was granted."""
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


def compare(grant: Grant, observed: dict[str, Any]) -> list[str]:
    """One sentence for each limit that was granted and is not what is seen; empty where all hold."""
    problems = []
    total = observed["total_sms"]
    if grant.threads is not None and total and observed["sms"] is not None:
        wanted = granted_sms(total, grant.threads)
        if observed["sms"] != wanted:
            problems.append(f"{observed['sms']} SMs are visible, {grant.threads} % of {total} are {wanted}")
    memory = grant.process_memory
    if memory is not None:
        if observed["free"] > memory:
            problems.append(f"{observed['free']} bytes are free, only {memory} were granted")
        if not observed["above_refused"]:
            problems.append(f"an allocation of {memory + ABOVE} bytes was not refused")
    return problems
