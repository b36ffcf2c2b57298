"""refine: how do processes cooperate on an iterative solver?

Commonly claimed: share a Manager().list() between the processes; or hand CUDA arrays to each other. A Manager's list
pickles each row into a third process and out of it. CUDA arrays can be handed over by CUDA IPC, but only within one PID
namespace: between two pods it fails with error 201 (measured on an H200). Host memory that all processes share works
everywhere, at the cost of two copies.

Jacobi's method on a 2-D Poisson problem with a known answer, whose rows are split over processes. After each sweep
neighbours exchange their edge rows in one of these three ways; every few sweeps the parent looks at the largest change
of all, and ends the run once it is below the tolerance. Each way must take as many sweeps as one process takes and
reach the same values, and they must be as near to the exact answer as the method promises. Measured on your machine:
the time per sweep of each way. On an H200, 64 × 64 points on two processes: 333 µs by the list, 150 through host
memory, 122 by CUDA IPC, and 79 in one process: so small a grid gains nothing by being split. Without a GPU the third is
left out, unless it is asked for.
"""

import argparse
from dataclasses import replace

import numpy as np

from gpushare_workload.backend.seam import UnsupportedError
from gpushare_workload.bounds import at_least
from gpushare_workload.halos import Way
from gpushare_workload.poisson import Poisson
from gpushare_workload.refining import Refined, Settings, refine
from gpushare_workload.report import Report, WrongError
from gpushare_workload.stopping import Stop

NAME = "refine"
SAME = 1e-12
"""Between one process and several: the operations are the same, so nothing but their order could differ."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--size", type=int, default=64, help="inner points in each direction")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--halos", nargs="+", type=Way, choices=list(Way), help="default: all that the backend knows")
    parser.add_argument("--tolerance", type=float, default=1e-5, help="largest change that ends it; 0: all sweeps")
    parser.add_argument("--sweeps", type=int, default=20_000, help="the most")
    parser.add_argument(
        "--look-every", type=int, default=50, metavar="SWEEPS", help="how often the change is looked at"
    )


def run(arguments: argparse.Namespace, report: Report, stop: Stop) -> None:
    at_least(arguments, size=1, processes=1, sweeps=1, look_every=1, tolerance=0)
    problem = Poisson(arguments.size)
    problem.slabs(arguments.processes)
    settings = Settings(
        problem, 1, Way.HOST, arguments.backend, arguments.tolerance, arguments.sweeps, arguments.look_every
    )
    reference = refine(settings, stop)
    _tell(report, problem, settings, reference)
    _check_converged(settings, reference)
    for way in arguments.halos or list(Way):
        stop.check()
        several = replace(settings, parts=arguments.processes, way=way)
        try:
            refined = refine(several, stop)
        except UnsupportedError as error:
            if arguments.halos:
                raise
            report.emit("left-out", halos=way, reason=str(error))
            continue
        difference = float(np.max(np.abs(refined.values - reference.values)))
        _tell(report, problem, several, refined, difference)
        if difference > SAME or refined.sweeps != reference.sweeps:
            raise WrongError(
                f"halos by {way}: {refined.sweeps} sweeps to values that differ by {difference:g} from those of one "
                f"process after {reference.sweeps}"
            )


def _check_converged(settings: Settings, refined: Refined) -> None:
    """Raises WrongError where the method did not get where it must."""
    if settings.tolerance == 0:
        return
    if refined.change > settings.tolerance:
        raise WrongError(
            f"after {refined.sweeps} sweeps values still change by {refined.change:g}: allow more --sweeps"
        )
    error, bound = _error(settings.problem, refined), settings.problem.error_bound(refined.change)
    if error > bound:
        raise WrongError(f"the values are {error:g} from the exact answer, the method promises {bound:g}")


def _error(problem: Poisson, refined: Refined) -> float:
    return float(np.max(np.abs(refined.values - problem.exact())))


def _tell(
    report: Report, problem: Poisson, settings: Settings, refined: Refined, difference: float | None = None
) -> None:
    report.emit(
        "measured",
        processes=settings.parts,
        halos=settings.way if settings.parts > 1 else None,
        **refined.identity,
        size=problem.size,
        sweeps=refined.sweeps,
        last_change=refined.change,
        wall_seconds=round(refined.seconds, 4),
        microseconds_per_sweep=round(refined.seconds / refined.sweeps * 1e6, 1),
        error_from_exact=_error(problem, refined),
        difference_from_one_process=difference,
    )
