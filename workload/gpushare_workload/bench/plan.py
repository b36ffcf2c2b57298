"""What is measured, in which order, and how long that takes. Pure.

A *pass* is a new set of clients in one mode, which runs every load of the plan and ends. Every repeat has a pass for
each mode and number of clients.

Guarantees: modes that are compared run next to each other, in an order that the seed shuffles for each repeat, so that
neither a drifting clock nor a GPU that warms up favours one of them.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from gpushare_workload.backend.work import Grid, Load, LoadKind
from gpushare_workload.mps.modes import SharingMode

MPS_CLIENTS = 48
"""Client contexts of one GPU before driver 590; the 49th is refused with error 46 (measured)."""
MOST_DEPTH = 1024
"""Launches that a stream takes before a launch itself waits."""
FIRST_CLIENT_SECONDS = 3.0
"""Time from the start of a process to a ready CuPy client; an assumption, corrected while the benchmark runs."""
FURTHER_CLIENT_SECONDS = 0.2
BETWEEN_RUNS_SECONDS = 0.15


@dataclass(frozen=True, slots=True)
class Pass:
    """`threads`: percent of the SMs that each client may use; None without MPS."""

    repeat: int
    mode: SharingMode
    clients: int
    threads: float | None
    loads: tuple[Load, ...]

    @property
    def processes(self) -> int:
        return 1 if self.mode is SharingMode.STREAMS else self.clients


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """`threads`: percent that `mps` gives each client. Times in seconds."""

    modes: tuple[SharingMode, ...] = tuple(SharingMode)
    clients: tuple[int, ...] = (1, 2, 4, 8, 16)
    loads: tuple[Load, ...] = tuple(Load(kind, grid) for kind in LoadKind for grid in Grid)
    repeats: int = 5
    warmup: float = 0.3
    window: float = 1.0
    threads: float = 100.0
    seed: int = 1

    def check(self) -> None:
        """Raises ValueError naming what is out of bounds, with its value."""
        _distinct("modes", self.modes)
        _distinct("clients", self.clients)
        _distinct("loads", self.loads)
        for load in self.loads:
            if not 1 <= load.depth <= MOST_DEPTH:
                raise ValueError(f"depths {load.depth}: 1 to {MOST_DEPTH} launches between two waits")
        for count in self.clients:
            if not 1 <= count <= MPS_CLIENTS:
                raise ValueError(f"clients {count}: a GPU takes 1 to {MPS_CLIENTS} MPS clients")
        if self.repeats < 1:
            raise ValueError(f"repeats {self.repeats}: at least 1")
        if self.warmup < 0:
            raise ValueError(f"warmup {self.warmup:g}: at least 0 seconds")
        if self.window <= 0:
            raise ValueError(f"seconds {self.window:g}: a run needs a time above 0")
        if not 0 < self.threads <= 100:
            raise ValueError(f"threads {self.threads:g}: a percentage above 0, up to 100")


def _distinct(name: str, values: Sequence[object]) -> None:
    if not values:
        raise ValueError(f"{name}: nothing to measure")
    if len(set(values)) != len(values):
        raise ValueError(f"{name} {' '.join(map(str, values))}: one is named twice")


def threads_of(mode: SharingMode, clients: int, threads: float) -> float | None:
    """Percent of the SMs for each client: `threads`, an equal part, or None without MPS."""
    if mode is SharingMode.MPS_EQUAL_CAPS:
        return 100 / clients
    return threads if mode.under_mps else None


def passes(plan: BenchPlan) -> list[Pass]:
    """The passes of a plan, in the order in which they run."""
    ordered = []
    for repeat in range(plan.repeats):
        shuffle = random.Random(f"{plan.seed}/{repeat}")  # noqa: S311 - an order, no secret
        for count in shuffle.sample(plan.clients, len(plan.clients)):
            for mode in shuffle.sample(plan.modes, len(plan.modes)):
                loads = tuple(shuffle.sample(plan.loads, len(plan.loads)))
                ordered.append(Pass(repeat, mode, count, threads_of(mode, count, plan.threads), loads))
    return ordered


def run_seconds(plan: BenchPlan) -> float:
    """One load once: preparation, warm-up and window."""
    return BETWEEN_RUNS_SECONDS + plan.warmup + plan.window


def pass_seconds(plan: BenchPlan, bench_pass: Pass) -> float:
    """The estimate for one pass: the start of its processes, and each of its loads."""
    start = FIRST_CLIENT_SECONDS + FURTHER_CLIENT_SECONDS * (bench_pass.processes - 1)
    return start + len(bench_pass.loads) * run_seconds(plan)


def plan_seconds(plan: BenchPlan) -> float:
    """The estimate for the whole plan, before anything is measured."""
    return sum(pass_seconds(plan, bench_pass) for bench_pass in passes(plan))
