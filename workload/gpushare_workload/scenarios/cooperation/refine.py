"""refine: how do processes cooperate on an iterative solver?

Commonly claimed: the processes should share a Manager().list(), or pass CUDA arrays to each other. A Manager's list
pickles each row into a third process and out of it. CUDA IPC passes CUDA arrays, but only within one PID namespace:
between two pods it fails. Host memory that all processes share works everywhere, at the cost of two copies.

What runs: Jacobi's method on a 2-D Poisson problem with a known answer. Its rows are split over processes, which
exchange their edge rows after each sweep in one of these three ways. Every few sweeps the parent checks the largest
change, and ends the run when it is below the tolerance. Each way must take as many sweeps as one process, reach the
same values, and come as near to the exact answer as the method promises.

Measured: the time of one sweep, for each way, and how many times as fast it is as one process. A small grid gains
nothing by being split: each sweep waits for the exchange. A large one gains where one process may not use the whole
GPU: two that are capped have twice the cap together. Without a GPU the third way is left out, unless it is requested.
The figures are in measurements/pages/kernels.md, under Scenarios.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from gpushare_workload.backend.interface import UnsupportedError
from gpushare_workload.events import JsonLines, WrongError
from gpushare_workload.processes.stopping import Stop
from gpushare_workload.scenarios.options import check_bounds
from gpushare_workload.scenarios.progress import progress
from gpushare_workload.scenarios.repeats import summarised
from gpushare_workload.solver.halos import HaloTransport
from gpushare_workload.solver.jacobi import JacobiResult, JacobiSettings, refine
from gpushare_workload.solver.poisson_problem import PoissonProblem

NAME = "refine"
SAME = 1e-12
"""Largest difference between one process and several: the operations are the same, only their order could differ."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--size", type=int, default=64, help="inner points in each direction")
    parser.add_argument("--processes", type=int, default=2, help="processes that share the rows")
    parser.add_argument(
        "--halos",
        nargs="+",
        type=HaloTransport,
        choices=list(HaloTransport),
        help="how edge rows are exchanged (default: every way that the backend supports)",
    )
    parser.add_argument(
        "--tolerance", type=float, default=1e-5, help="end when no value changes by more; 0: do all sweeps"
    )
    parser.add_argument("--sweeps", type=int, default=20_000, help="the most sweeps")
    parser.add_argument("--repeats", type=int, default=3, help="the figures are medians of this many runs of each way")
    parser.add_argument("--look-every", type=int, default=50, metavar="SWEEPS", help="sweeps between two checks")


def run(
    arguments: argparse.Namespace,
    events: JsonLines,
    stop: Stop,
    refine: Callable[[JacobiSettings, Stop], JacobiResult] = refine,
) -> None:
    check_bounds(arguments, size=1, processes=1, sweeps=1, look_every=1, tolerance=0, repeats=1)
    problem = PoissonProblem(arguments.size)
    problem.slabs(arguments.processes)
    alone = JacobiSettings(
        problem, 1, HaloTransport.HOST, arguments.backend, arguments.tolerance, arguments.sweeps, arguments.look_every
    )
    transports = list(arguments.halos or HaloTransport)
    single: list[JacobiResult] = []
    several: dict[HaloTransport, list[JacobiResult]] = {transport: [] for transport in transports}
    with progress(arguments.repeats * (1 + len(transports)), NAME) as advance:
        for _ in range(arguments.repeats):
            single.append(refine(alone, stop))
            advance(1)
            _check_converged(alone, single[-1])
            for transport in list(transports):
                stop.check()
                settings = replace(alone, parts=arguments.processes, transport=transport)
                try:
                    several[transport].append(refine(settings, stop))
                except UnsupportedError as error:
                    if arguments.halos:
                        raise
                    events.emit("left-out", halos=transport, reason=str(error))
                    transports.remove(transport)
                    continue
                advance(1)
                _check_same(settings, several[transport][-1], single[-1])
    _emit(events, alone, single, single)
    for transport in transports:
        _emit(events, replace(alone, parts=arguments.processes, transport=transport), several[transport], single)


def _check_same(settings: JacobiSettings, refined: JacobiResult, reference: JacobiResult) -> None:
    """Raises WrongError for values that differ by more than SAME, or another number of sweeps."""
    difference = _difference(refined, reference)
    if difference > SAME or refined.sweeps != reference.sweeps:
        raise WrongError(
            f"halos by {settings.transport}: {refined.sweeps} sweeps to values that differ by {difference:g} from "
            f"those of one process after {reference.sweeps}"
        )


def _difference(refined: JacobiResult, reference: JacobiResult) -> float:
    return float(np.max(np.abs(refined.values - reference.values)))


def _check_converged(settings: JacobiSettings, refined: JacobiResult) -> None:
    """Raises WrongError when the values have not come as near to the exact answer as the method promises."""
    if settings.tolerance == 0:
        return
    if refined.change > settings.tolerance:
        raise WrongError(
            f"after {refined.sweeps} sweeps values still change by {refined.change:g}: allow more --sweeps"
        )
    error, bound = _error(settings.problem, refined), settings.problem.error_bound(refined.change)
    if error > bound:
        raise WrongError(f"the values are {error:g} from the exact answer, the method promises {bound:g}")


def _error(problem: PoissonProblem, refined: JacobiResult) -> float:
    return float(np.max(np.abs(refined.values - problem.exact())))


def _emit(
    events: JsonLines, settings: JacobiSettings, runs: Sequence[JacobiResult], alone: Sequence[JacobiResult]
) -> None:
    """`alone`: one process, in the same repeats."""
    last = runs[-1]
    figures = [
        {
            "wall_seconds": run.seconds,
            "microseconds_per_sweep": run.seconds / run.sweeps * 1e6,
            "times_as_fast": reference.seconds / run.seconds if run.identity["timed"] else None,
            "gpu_busy_percent": run.busy_percent,
        }
        for run, reference in zip(runs, alone, strict=True)
    ]
    events.emit(
        "measured",
        processes=settings.parts,
        halos=None if runs is alone else settings.transport,
        **last.identity,
        size=settings.problem.size,
        sweeps=last.sweeps,
        last_change=last.change,
        **summarised(figures),
        error_from_exact=_error(settings.problem, last),
        difference_from_one_process=None if runs is alone else _difference(last, alone[-1]),
    )
