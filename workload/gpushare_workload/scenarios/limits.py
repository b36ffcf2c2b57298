"""limits: are my limits real?

Commonly claimed: a pod with a fraction of a GPU "sees" that fraction. What holds under MPS: CUDA shows the client its
share of the SMs, `cudaMemGetInfo` shows the limit as free memory and the whole GPU as total, and an allocation above
the limit fails with error 2. (Measured on an H200: 25 % of 132 SMs are 32, a 16 GiB limit leaves 16,239 MiB free.)

Exit code 0 means that every limit that was granted is in force for this process.
"""

import argparse
from typing import Any

from gpushare_workload.backend import Backend, open_backend
from gpushare_workload.grant import MIB, Grant, granted_sms
from gpushare_workload.report import Report, WrongError
from gpushare_workload.stopping import Stop

NAME = "limits"
ABOVE = 64 * MIB
"""How far above the limit an allocation is tried: further than any rounding, near enough to prove the bound."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--hold", type=float, default=0.0, metavar="SECONDS", help="stay a client for that long")


def run(arguments: argparse.Namespace, report: Report, stop: Stop) -> None:
    backend = open_backend(arguments.backend)
    try:
        check(backend, Grant.from_environment(), report)
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
    if grant.memory is not None:
        observed["above_refused"] = not backend.try_allocate(grant.memory + ABOVE)
    return observed


def compare(grant: Grant, observed: dict[str, Any]) -> list[str]:
    """One sentence for each limit that was granted and is not what is seen; empty where all hold."""
    problems = []
    total = observed["total_sms"]
    if grant.threads is not None and total and observed["sms"] is not None:
        wanted = granted_sms(total, grant.threads)
        if observed["sms"] != wanted:
            problems.append(f"{observed['sms']} SMs are visible, {grant.threads} % of {total} are {wanted}")
    if grant.memory is not None:
        if observed["free"] > grant.memory:
            problems.append(f"{observed['free']} bytes are free, only {grant.memory} were granted")
        if not observed["above_refused"]:
            problems.append(f"an allocation of {grant.memory + ABOVE} bytes was not refused")
    return problems
