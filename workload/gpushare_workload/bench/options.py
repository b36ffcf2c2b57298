"""The command line of the benchmark, and the plan that it describes."""

import argparse
from dataclasses import replace
from enum import StrEnum

from gpushare_workload.backend import CHOICES
from gpushare_workload.backend.work import Grid, Load, LoadKind
from gpushare_workload.bench.plan import BenchPlan
from gpushare_workload.mps.modes import SharingMode
from gpushare_workload.processes import common_start

DEPTHS = (1, 16)
"""Waiting after each launch flatters MPS most; programs differ, so a second depth is always measured."""
DEFAULT = BenchPlan(
    loads=tuple(Load(kind, grid, depth) for kind in LoadKind for grid in Grid for depth in DEPTHS), repeats=3
)
QUICK = BenchPlan(
    clients=(1, 4),
    loads=tuple(Load(LoadKind.COMPUTE, grid, depth) for grid in Grid for depth in DEPTHS),
    repeats=2,
    warmup=0.1,
    window=0.3,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("what to measure")
    what.add_argument(
        "--modes",
        nargs="+",
        type=SharingMode,
        choices=list(SharingMode),
        metavar="MODE",
        help=_one_of(SharingMode, "possible here"),
    )
    what.add_argument("--clients", nargs="+", type=int, metavar="N", help="numbers of clients (1 2 4 8 16)")
    what.add_argument("--grids", nargs="+", type=Grid, choices=list(Grid), metavar="GRID", help=_one_of(Grid))
    what.add_argument(
        "--kinds", nargs="+", type=LoadKind, choices=list(LoadKind), metavar="KIND", help=_one_of(LoadKind)
    )
    what.add_argument(
        "--depths", nargs="+", type=int, metavar="N", help="launches between two waits of a client (1 16)"
    )
    what.add_argument("--graphs", action="store_true", help="each depth above 1 also as one captured graph")
    what.add_argument("--repeats", type=int, metavar="N", help=f"how often each run is repeated ({DEFAULT.repeats})")
    what.add_argument("--seconds", type=float, metavar="S", help=f"length of each run ({DEFAULT.window:g})")
    what.add_argument("--warmup", type=float, metavar="S", help=f"time before each run ({DEFAULT.warmup:g})")
    what.add_argument(
        "--threads", type=float, metavar="PERCENT", help="percent of the SMs for each client in mps (100)"
    )
    what.add_argument("--seed", type=int, default=1, help="determines the order of the runs (default: %(default)s)")
    what.add_argument("--quick", action="store_true", help="a short run: 1 and 4 clients, compute, 2 short repeats")
    what.add_argument("--backend", choices=CHOICES, default="auto", help="default: %(default)s, CuPy if installed")
    where = parser.add_argument_group("where")
    where.add_argument(
        "--own-daemon",
        action="store_true",
        help="start a private MPS daemon while MPS is measured; the GPU must be unused",
    )
    where.add_argument(
        "--exclusive",
        action="store_true",
        help="with --own-daemon: set the compute mode to EXCLUSIVE_PROCESS while the daemon runs (needs root; untested "
        "on hardware)",
    )
    where.add_argument("--pods", type=int, default=1, metavar="N", help="this is one of N pods that run it together")
    where.add_argument("--pod", type=int, metavar="I", help="the number of this pod (default: $JOB_COMPLETION_INDEX)")
    common_start.add_argument(where)
    results = parser.add_argument_group("results")
    results.add_argument("--json", metavar="FILE", help="write all results, for `report`; - for standard output")
    results.add_argument("--csv", metavar="FILE", help="write one line for each case")


def plan_of(arguments: argparse.Namespace, modes: tuple[SharingMode, ...]) -> BenchPlan:
    """The plan for the options. Raises ValueError naming what is out of bounds."""
    base = QUICK if arguments.quick else DEFAULT
    kinds = arguments.kinds or list(dict.fromkeys(load.kind for load in base.loads))
    grids = arguments.grids or list(dict.fromkeys(load.grid for load in base.loads))
    depths = [(depth, False) for depth in arguments.depths or DEPTHS]
    if arguments.graphs:
        depths += [(depth, True) for depth, _ in depths if depth > 1]
    named = {
        "clients": tuple(arguments.clients) if arguments.clients else None,
        "repeats": arguments.repeats,
        "window": arguments.seconds,
        "warmup": arguments.warmup,
        "threads": arguments.threads,
    }
    plan = replace(
        base,
        modes=modes,
        loads=tuple(Load(kind, grid, *depth) for kind in kinds for grid in grids for depth in depths),
        seed=arguments.seed,
        **{name: value for name, value in named.items() if value is not None},
    )
    plan.check()
    return plan


def _one_of(names: type[StrEnum], which: str = "") -> str:
    return f"{', '.join(names)}; default: all {which}".rstrip()
