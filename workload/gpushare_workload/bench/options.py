"""The command line of the benchmark, and the plan that it asks for."""

import argparse
from dataclasses import replace
from enum import StrEnum

from gpushare_workload import start
from gpushare_workload.backend import CHOICES
from gpushare_workload.backend.work import Grid, Kind
from gpushare_workload.bench.plan import Load, Mode, Plan

DEFAULT = Plan(repeats=3)
QUICK = Plan(clients=(1, 4), loads=tuple(Load(Kind.COMPUTE, grid) for grid in Grid), repeats=2, warmup=0.1, window=0.3)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("what to measure")
    what.add_argument(
        "--modes", nargs="+", type=Mode, choices=list(Mode), metavar="MODE", help=_one_of(Mode, "possible here")
    )
    what.add_argument("--clients", nargs="+", type=int, metavar="N", help="1 2 4 8 16 by default")
    what.add_argument("--grids", nargs="+", type=Grid, choices=list(Grid), metavar="GRID", help=_one_of(Grid))
    what.add_argument("--kinds", nargs="+", type=Kind, choices=list(Kind), metavar="KIND", help=_one_of(Kind))
    what.add_argument("--repeats", type=int, metavar="N", help=f"of every run ({DEFAULT.repeats})")
    what.add_argument("--seconds", type=float, metavar="S", help=f"of each run ({DEFAULT.window:g})")
    what.add_argument("--warmup", type=float, metavar="S", help=f"before each run ({DEFAULT.warmup:g})")
    what.add_argument("--threads", type=float, metavar="PERCENT", help="that mps and graphs give each client (100)")
    what.add_argument("--seed", type=int, default=1, help="of the order of the runs")
    what.add_argument("--quick", action="store_true", help="a look: 1 and 4 clients, compute, 2 short repeats")
    what.add_argument("--backend", choices=CHOICES, default="auto")
    start.add_argument(parser)
    where = parser.add_argument_group("where")
    where.add_argument(
        "--own-daemon",
        action="store_true",
        help="start a private MPS control daemon wherever MPS is measured, on a GPU that nobody uses",
    )
    where.add_argument(
        "--exclusive",
        action="store_true",
        help="with --own-daemon: set the compute mode to EXCLUSIVE_PROCESS while the daemon runs (root)",
    )
    where.add_argument("--pods", type=int, default=1, metavar="N", help="this is one of N pods that run it together")
    where.add_argument("--pod", type=int, metavar="I", help="which one (default: $JOB_COMPLETION_INDEX)")
    results = parser.add_argument_group("results")
    results.add_argument("--json", metavar="FILE", help="everything, for `report`; - for standard output")
    results.add_argument("--csv", metavar="FILE", help="one line for each case")


def plan_of(arguments: argparse.Namespace, modes: tuple[Mode, ...]) -> Plan:
    """Raises ValueError naming what is out of bounds."""
    base = QUICK if arguments.quick else DEFAULT
    kinds = arguments.kinds or list(dict.fromkeys(load.kind for load in base.loads))
    grids = arguments.grids or list(dict.fromkeys(load.grid for load in base.loads))
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
        loads=tuple(Load(kind, grid) for kind in kinds for grid in grids),
        seed=arguments.seed,
        **{name: value for name, value in named.items() if value is not None},
    )
    plan.check()
    return plan


def _one_of(names: type[StrEnum], which: str = "") -> str:
    return f"{', '.join(names)}; default: all {which}".rstrip()
