"""A program that runs short kernels and checks every result: what a neighbour's misdeed would show in."""

import argparse
import time

import numpy as np

from gpushare_workload.backend import Backend
from gpushare_workload.backend.seam import Vector
from gpushare_workload.bounds import at_least
from gpushare_workload.report import Report, WrongError
from gpushare_workload.stopping import Stop

VECTORS = 8
PAUSE = 0.02
"""Seconds between two checks, so that eight neighbours fit on two CPU cores."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--elements", type=int, default=10_000, help="vector length of each of a neighbour's checks")
    parser.add_argument("--duration", type=float, default=0.0, metavar="SECONDS", help="0: until SIGTERM")
    parser.add_argument("--report-every", type=float, default=1.0, metavar="SECONDS")


def check(arguments: argparse.Namespace) -> None:
    """Raises ValueError naming the option and its value."""
    at_least(arguments, elements=1, duration=0, report_every=0)


def deadline(arguments: argparse.Namespace) -> float:
    """`--duration` from now, on the monotonic clock."""
    return time.monotonic() + arguments.duration if arguments.duration else float("inf")


def check_results(backend: Backend, arguments: argparse.Namespace, report: Report, stop: Stop) -> None:
    """For `--duration`, or until a signal.

    Raises WrongError for a wrong result, GpuError where somebody's fault came through.
    """
    vectors = np.random.default_rng(arguments.seed).random((VECTORS, arguments.elements))
    expected: Vector = np.einsum("ij,ij->i", vectors, vectors)
    report.emit("started", role="neighbour")
    checks, told, end = 0, time.monotonic(), deadline(arguments)
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
