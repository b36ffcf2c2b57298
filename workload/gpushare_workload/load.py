"""What one launch of a scenario is, from its arguments."""

import argparse

from gpushare_workload.backend.seam import Device
from gpushare_workload.backend.work import MOST_ITERATIONS, Grid, Kind, Work
from gpushare_workload.bounds import at_least

SMS = 132
"""Where nothing tells the SMs of the whole GPU: those of an H200, so that grids are the same everywhere."""


def add_arguments(parser: argparse.ArgumentParser, grid: Grid, iterations: int = 8192) -> None:
    parser.add_argument(
        "--grid",
        choices=[it.value for it in Grid],
        default=grid.value,
        help="how much of the GPU one launch can fill: small is 8 blocks, half is a block for every second SM of the "
        "whole GPU, saturating is 8 blocks for each (default: %(default)s)",
    )
    parser.add_argument(
        "--iterations",
        type=int,
        default=iterations,
        help="length of a compute kernel; NumPy does a 256th (default: %(default)s)",
    )
    parser.add_argument(
        "--elements",
        type=int,
        default=32768,
        help="floats for each block of a memory kernel or transfer; NumPy takes a 256th (default: %(default)s)",
    )


def add_kind(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--kind",
        choices=[it.value for it in Kind],
        default=Kind.COMPUTE.value,
        help="bound by arithmetic, by device memory, or by copies from and to the host (default: %(default)s)",
    )


def check(arguments: argparse.Namespace) -> None:
    """Raises ValueError naming the option and its value."""
    at_least(arguments, iterations=1, elements=1)
    if arguments.iterations > MOST_ITERATIONS:
        raise ValueError(f"--iterations {arguments.iterations}: must be at most {MOST_ITERATIONS}, to stay exact")


def work(arguments: argparse.Namespace, device: Device, kind: Kind) -> Work:
    blocks = Grid(arguments.grid).blocks(device.total_sms or SMS)
    return Work(kind, blocks, iterations=arguments.iterations, elements=arguments.elements)
