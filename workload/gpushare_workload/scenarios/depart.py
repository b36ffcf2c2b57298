"""depart: what happens to my neighbours when I am killed in mid-kernel?

Commonly claimed: processes under MPS (Volta and later) are isolated from each other. Measured: killing a client while
its kernel has more than about 10 ms to run ends every other client of that GPU with error 700; an ordinary pod deletion
does just that. Ended through the control daemon first (what gpushare does), nobody is hurt.

Roles, one process each: `victim` runs kernels of a set length back to back and does not catch SIGTERM; `neighbour` runs
short kernels, checks every result, catches SIGTERM and exits 0 unless one was wrong. Run one victim beside neighbours
on one GPU and kill the victim.
"""

import argparse
import signal
import time

import numpy as np

from gpushare_workload.backend import Backend, GpuError, open_backend
from gpushare_workload.backend.seam import TERMINATED_BY_DAEMON, Vector
from gpushare_workload.grant import Grant
from gpushare_workload.report import Report, WrongError
from gpushare_workload.scenarios import limits
from gpushare_workload.stopping import Stop

NAME = "depart"
PAUSE = 0.02
"""Seconds between two checks of a neighbour, so that eight of them fit on two CPU cores."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--role", choices=("victim", "neighbour"), default="neighbour")
    parser.add_argument("--kernel-ms", type=float, default=1000.0, help="length of each of the victim's kernels")
    parser.add_argument("--elements", type=int, default=10_000, help="vector length of each of a neighbour's checks")
    parser.add_argument("--duration", type=float, default=0.0, metavar="SECONDS", help="0: until SIGTERM")
    parser.add_argument("--report-every", type=float, default=1.0, metavar="SECONDS")


def run(arguments: argparse.Namespace, report: Report, stop: Stop) -> None:
    if arguments.elements < 1:
        raise ValueError(f"--elements {arguments.elements}: a vector needs at least 1 element")
    if arguments.role == "victim":
        # Not catching it is the point: this is the program that nobody wrote with care.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    backend = open_backend(arguments.backend)
    try:
        limits.check(backend, Grant.from_environment(), report)
        end = time.monotonic() + arguments.duration if arguments.duration else float("inf")
        if arguments.role == "victim":
            _victim(backend, arguments.kernel_ms, end, report, stop)
        else:
            _neighbour(backend, arguments, end, report, stop)
    finally:
        backend.close()


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


def _neighbour(backend: Backend, arguments: argparse.Namespace, end: float, report: Report, stop: Stop) -> None:
    vectors = np.random.default_rng(arguments.seed).random((8, arguments.elements))
    expected: Vector = np.einsum("ij,ij->i", vectors, vectors)
    report.emit("started", role="neighbour")
    checks, told = 0, time.monotonic()
    while time.monotonic() < end and not stop.asked():
        row = checks % len(vectors)
        got = backend.sum_of_squares(vectors[row])
        if not np.isclose(got, expected[row], rtol=1e-9):
            raise WrongError(f"check {checks}: sum of squares is {got!r}, expected {expected[row]!r}")
        checks += 1
        if time.monotonic() - told >= arguments.report_every:
            told = time.monotonic()
            report.emit("progress", role="neighbour", checks=checks, wrong=0)
        stop.wait(PAUSE)
    report.emit("finished", role="neighbour", checks=checks, wrong=0)
