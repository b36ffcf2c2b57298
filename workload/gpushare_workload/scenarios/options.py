"""Options that several scenarios share, their bounds, and the amount of work that they describe."""

import argparse
from collections.abc import Sequence

from gpushare_workload.backend.interface import DeviceProperties
from gpushare_workload.backend.work import H200_SMS, MOST_ITERATIONS, Grid, LoadKind, Work


def check_bounds(arguments: argparse.Namespace, **least: float) -> None:
    """Raises ValueError naming the first option whose value is below its bound, infinite or not a number."""
    for name, bound in least.items():
        value = getattr(arguments, name)
        if not value >= bound:  # also true for NaN
            raise ValueError(f"--{name.replace('_', '-')} {value}: must be at least {bound}")
        if value == float("inf"):
            raise ValueError(f"--{name.replace('_', '-')} {value}: must be finite")


def add_work_options(parser: argparse.ArgumentParser, grid: Grid, iterations: int = 8192) -> None:
    parser.add_argument(
        "--grid",
        choices=[choice.value for choice in Grid],
        default=grid.value,
        help="how much of the GPU one launch can fill: small is 8 blocks, half is a block for every second SM of the "
        "whole GPU, saturating is 8 blocks for each SM (default: %(default)s)",
    )
    parser.add_argument(
        "--iterations",
        type=int,
        default=iterations,
        help="length of a compute kernel; NumPy runs 1/256 of it (default: %(default)s)",
    )
    parser.add_argument(
        "--elements",
        type=int,
        default=32768,
        help="floats for each block of a memory kernel or transfer; NumPy uses 1/256 of them (default: %(default)s)",
    )


def add_kind_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--kind",
        choices=[choice.value for choice in LoadKind],
        default=LoadKind.COMPUTE.value,
        help="bound by arithmetic, by device memory, or by copies to and from the host (default: %(default)s)",
    )


def check_work_options(arguments: argparse.Namespace) -> None:
    """Raises ValueError naming the option and its value."""
    check_bounds(arguments, iterations=1, elements=1)
    if arguments.iterations > MOST_ITERATIONS:
        raise ValueError(f"--iterations {arguments.iterations}: must be at most {MOST_ITERATIONS}, to stay exact")


def add_threads_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--threads",
        nargs="+",
        type=float,
        default=[100.0],
        metavar="PERCENT",
        help="percent of the SMs that each process may use under MPS; 100 sets no limit (default: 100)",
    )


def check_threads(threads: Sequence[float], under_mps: bool) -> None:
    """Raises ValueError naming a value of --threads that is no percentage, or that nothing would enforce."""
    for percent in threads:
        if not 0 < percent <= 100:
            raise ValueError(f"--threads {percent:g}: a percentage above 0, up to 100")
        if percent < 100 and not under_mps:
            raise ValueError(f"--threads {percent:g}: no MPS daemon is in reach, and nothing else limits threads")


def work_of(arguments: argparse.Namespace, device: DeviceProperties, kind: LoadKind) -> Work:
    """One launch as the options describe it, on a GPU of `device.total_sms` SMs (an H200's where that is unknown)."""
    blocks = Grid(arguments.grid).blocks(device.total_sms or H200_SMS)
    return Work(kind, blocks, iterations=arguments.iterations, elements=arguments.elements)
