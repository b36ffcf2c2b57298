"""depart: what happens to my neighbours when I am killed in mid-kernel?

Commonly claimed: processes under MPS (Volta and later) are isolated from each other. But when a client is killed while
its kernel has some time to run, every other client of that GPU ends with it, and an ordinary pod deletion does exactly
that. When the MPS daemon terminates the client first, as gpushare does, no neighbour is hurt. The figures are in
docs/mps.md, "Who dies with whom", and in docs/departure.md.

Roles, one process each. `victim` runs kernels of a set length back to back and, by default, does not catch SIGTERM.
`neighbour` runs short kernels, checks every result, catches SIGTERM and exits 0 unless a result was wrong. Run one
victim beside neighbours on one GPU and kill the victim. Both exit 4 where they end before a given `--duration` is over.
"""

import argparse
import signal
import time
from collections.abc import Callable
from enum import StrEnum

from gpushare_workload.backend import Backend, GpuError, open_backend
from gpushare_workload.backend.interface import TERMINATED_BY_DAEMON
from gpushare_workload.events import JsonLines
from gpushare_workload.gpus.grant import ContainerGrant
from gpushare_workload.processes.stopping import Stop, StoppedError
from gpushare_workload.scenarios.isolation import limits, neighbour

NAME = "depart"


class OnSigterm(StrEnum):
    """What a victim does on SIGTERM."""

    DIE = "die"  # no handler, as in most programs
    FINISH = "finish"  # ends after the running kernel
    IGNORE = "ignore"  # catches the signal and goes on


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--role", choices=("victim", "neighbour"), default="neighbour", help="see above (default: %(default)s)"
    )
    parser.add_argument("--kernel-ms", type=float, default=1000.0, help="length of each of the victim's kernels")
    parser.add_argument(
        "--on-sigterm",
        choices=list(OnSigterm),
        type=OnSigterm,
        default=OnSigterm.DIE,
        help="what the victim does on SIGTERM: no handler, end after the running kernel, or catch it and go on "
        "(default: %(default)s)",
    )
    neighbour.add_arguments(parser)


def run(
    arguments: argparse.Namespace,
    events: JsonLines,
    stop: Stop,
    open_backend: Callable[[str], Backend] = open_backend,
) -> None:
    neighbour.check(arguments)
    if not arguments.kernel_ms > 0:
        raise ValueError(f"--kernel-ms {arguments.kernel_ms}: must be more than 0")
    if arguments.role == "victim":
        _treat_sigterm(arguments.on_sigterm)
    backend = open_backend(arguments.backend)
    try:
        limits.check(backend, ContainerGrant.from_environment(), events)
        if arguments.role == "victim":
            _victim(backend, arguments.kernel_ms, neighbour.deadline(arguments), events, stop)
        else:
            neighbour.check_results(backend, arguments, events, stop)
    finally:
        backend.close()


def _treat_sigterm(choice: OnSigterm) -> None:
    """Replaces the handler that asks the scenario to stop, unless the victim shall finish."""
    if choice is OnSigterm.DIE:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    elif choice is OnSigterm.IGNORE:
        # Not SIG_IGN: seen from outside (/proc/PID/status), this program catches the signal.
        signal.signal(signal.SIGTERM, lambda *_: None)


def _victim(backend: Backend, kernel_ms: float, end: float, events: JsonLines, stop: Stop) -> None:
    events.emit("started", role="victim", kernel_ms=kernel_ms)
    kernels = 0
    try:
        while time.monotonic() < end and not stop.asked():
            backend.spin(kernel_ms)
            backend.synchronize()
            kernels += 1
    except GpuError as error:
        if error.code != TERMINATED_BY_DAEMON:
            raise
        events.emit("terminated", role="victim", kernels=kernels, code=error.code)
        if time.monotonic() < end < float("inf"):
            raise StoppedError("its CUDA contexts were terminated before --duration was over") from error
        return
    if neighbour.is_interrupted(end, stop):
        stop.check()
    events.emit("finished", role="victim", kernels=kernels)
