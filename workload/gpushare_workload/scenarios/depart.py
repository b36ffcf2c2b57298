"""depart: what happens to my neighbours when I am killed in mid-kernel?

Commonly claimed: processes under MPS (Volta and later) are isolated from each other. Measured: killing a client while
its kernel has more than about 10 ms to run ends every other client of that GPU with error 700; an ordinary pod deletion
does just that. Ended through the control daemon first (what gpushare does), nobody is hurt. Of 10 kills each on an H200
at kernels of 1, 5, 10, 20, 50 and 100 ms: unguarded, the first at 10 ms or more ended all three neighbours; guarded,
none of 60 hurt anybody.

Roles, one process each: `victim` runs kernels of a set length back to back and, unless told otherwise, does not catch
SIGTERM; `neighbour` runs short kernels, checks every result, catches SIGTERM and exits 0 unless one was wrong. Run one
victim beside neighbours on one GPU and kill the victim.
"""

import argparse
import signal
import time
from enum import StrEnum

from gpushare_workload import neighbour
from gpushare_workload.backend import Backend, GpuError, open_backend
from gpushare_workload.backend.seam import TERMINATED_BY_DAEMON
from gpushare_workload.grant import Grant
from gpushare_workload.report import Report
from gpushare_workload.scenarios import limits
from gpushare_workload.stopping import Stop

NAME = "depart"


class OnSigterm(StrEnum):
    """What a victim does about SIGTERM."""

    DIE = "die"  # no handler: the program that nobody wrote with care
    FINISH = "finish"  # ends after the kernel that runs
    IGNORE = "ignore"  # catches it and goes on: hangs, or thinks that it has hours


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--role", choices=("victim", "neighbour"), default="neighbour")
    parser.add_argument("--kernel-ms", type=float, default=1000.0, help="length of each of the victim's kernels")
    parser.add_argument(
        "--on-sigterm",
        choices=list(OnSigterm),
        type=OnSigterm,
        default=OnSigterm.DIE,
        help="what the victim does about it: no handler, end after its kernel, or catch it and go on",
    )
    neighbour.add_arguments(parser)


def run(arguments: argparse.Namespace, report: Report, stop: Stop) -> None:
    neighbour.check(arguments)
    if not arguments.kernel_ms > 0:
        raise ValueError(f"--kernel-ms {arguments.kernel_ms}: must be more than 0")
    if arguments.role == "victim":
        _treat_sigterm(arguments.on_sigterm)
    backend = open_backend(arguments.backend)
    try:
        limits.check(backend, Grant.from_environment(), report)
        if arguments.role == "victim":
            _victim(backend, arguments.kernel_ms, neighbour.deadline(arguments), report, stop)
        else:
            neighbour.check_results(backend, arguments, report, stop)
    finally:
        backend.close()


def _treat_sigterm(choice: OnSigterm) -> None:
    """Replaces the handler that asks a scenario to stop, where the victim has other plans."""
    if choice is OnSigterm.DIE:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    elif choice is OnSigterm.IGNORE:
        # Not SIG_IGN: to who looks at it from outside, this program cares for the signal.
        signal.signal(signal.SIGTERM, lambda *_: None)


def _victim(backend: Backend, kernel_ms: float, end: float, report: Report, stop: Stop) -> None:
    report.emit("started", role="victim", kernel_ms=kernel_ms)
    kernels = 0
    try:
        while time.monotonic() < end and not stop.asked():
            backend.spin(kernel_ms)
            backend.synchronize()
            kernels += 1
    except GpuError as error:
        if error.code != TERMINATED_BY_DAEMON:
            raise
        report.emit("terminated", role="victim", kernels=kernels, code=error.code)
        return
    report.emit("finished", role="victim", kernels=kernels)
