"""A neighbour: a program that runs short kernels and checks every result, so that another client's fault shows."""

import argparse
import time

import numpy as np

from gpushare_workload.backend import Backend
from gpushare_workload.backend.interface import Vector
from gpushare_workload.events import JsonLines, WrongError
from gpushare_workload.processes.stopping import Stop
from gpushare_workload.scenarios.options import check_bounds

VECTORS = 8
PAUSE_SECONDS = 0.02
"""Time between two checks, so that eight neighbours fit on two CPU cores."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--elements", type=int, default=10_000, help="vector length of each of a neighbour's checks")
    parser.add_argument(
        "--duration", type=float, default=0.0, metavar="SECONDS", help="how long to run; 0: until SIGTERM"
    )
    parser.add_argument(
        "--report-every", type=float, default=1.0, metavar="SECONDS", help="time between two events of a neighbour"
    )


def check(arguments: argparse.Namespace) -> None:
    """Raises ValueError naming the option and its value."""
    check_bounds(arguments, elements=1, duration=0, report_every=0)


def deadline(arguments: argparse.Namespace) -> float:
    """`--duration` from now, on the monotonic clock."""
    return time.monotonic() + arguments.duration if arguments.duration else float("inf")


def check_results(backend: Backend, arguments: argparse.Namespace, events: JsonLines, stop: Stop) -> None:
    """Checks results for `--duration` or until a signal.

    Raises WrongError for a wrong result, GpuError when another client's fault reaches this one, StoppedError where a
    signal came before `--duration` was over.
    """
    vectors = np.random.default_rng(arguments.seed).random((VECTORS, arguments.elements))
    expected: Vector = np.einsum("ij,ij->i", vectors, vectors)
    events.emit("started", role="neighbour")
    checks, reported, end = 0, time.monotonic(), deadline(arguments)
    while time.monotonic() < end and not stop.asked():
        row = checks % len(vectors)
        got = backend.sum_of_squares(vectors[row])
        if not np.isclose(got, expected[row], rtol=1e-9):
            raise WrongError(f"check {checks}: sum of squares is {got!r}, expected {expected[row]!r}")
        checks += 1
        if time.monotonic() - reported >= arguments.report_every:
            reported = time.monotonic()
            events.emit("progress", role="neighbour", checks=checks, wrong=0)
        stop.wait(PAUSE_SECONDS)
    interrupted = is_interrupted(end, stop)
    events.emit("progress" if interrupted else "finished", role="neighbour", checks=checks, wrong=0)
    if interrupted:
        stop.check()


def is_interrupted(end: float, stop: Stop) -> bool:
    """A program without a given end does what it is for until it is stopped."""
    return stop.asked() and time.monotonic() < end < float("inf")
