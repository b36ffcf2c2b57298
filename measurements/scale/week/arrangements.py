"""The ways to arrange a cluster's GPUs that are compared: its pools of nodes, and what a pod asks there. Pure.

A node is in one pool. NVIDIA's device plugin and gpushare never share a node, so pods for whole GPUs have nodes of
their own beside any share. Pools get nodes in proportion to what their pods need in their busiest moment: planned with
hindsight, so what waits is not for want of a better guess.
"""

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gpushare.api.gpushare import Placement
from measurements.scale.week.demand import Job
from measurements.scale.week.gpus import ClaimGpus, NodeGpus, SlotGpus, WholeGpus, claimed_percent
from measurements.scale.week.scheduler import Request
from measurements.scale.week.trace import Ask, Shape

LARGEST = 8
"""GPUs of the largest pod: it needs a node that has as many."""
SLOTS = {"eighths": 8, "quarters": 4, "halves": 2}
"""Slots of a GPU by share."""


@dataclass(frozen=True, slots=True)
class Pool:
    """`units`: what a pod asks of it. `per_gpu`: units of a GPU.

    `extended`: whether pods ask for an extended resource, rather than by a claim.
    """

    gpus: Callable[[int, Placement], NodeGpus]
    units: Callable[[Ask], int]
    per_gpu: int
    extended: bool


WHOLE = Pool(lambda gpus, _: WholeGpus(gpus), lambda ask: ask.gpus, 1, extended=True)
CLAIMS = Pool(lambda gpus, _: ClaimGpus(gpus), lambda ask: claimed_percent(ask.milli), 100, extended=False)


@dataclass(frozen=True, slots=True)
class Arrangement:
    what: str
    pools: Mapping[str, Pool]
    pool_of: Callable[[Ask], str]
    large: frozenset[str] = frozenset()
    """Pools of nothing but nodes that have as many GPUs as the largest pod."""

    def request(self, ask: Ask) -> Request:
        name = self.pool_of(ask)
        return Request(ask.cpu_milli, ask.memory_mib, name, self.pools[name].units(ask))


def slots(per_gpu: int) -> Pool:
    """A share of so many slots a GPU."""
    return Pool(lambda gpus, placement: SlotGpus(gpus, per_gpu, placement), lambda ask: 1, per_gpu, extended=True)


def _smallest_slot(ask: Ask) -> str:
    for name, per_gpu in SLOTS.items():
        if ask.gpus == 1 and ask.milli * per_gpu <= 1000:
            return name
    return "whole"


ARRANGEMENTS = {
    "whole": Arrangement(
        "whole GPUs alone: who asks for a part gets a GPU",
        {"whole": WHOLE},
        lambda ask: "whole",
    ),
    "wholeApart": Arrangement(
        "whole GPUs alone, with nodes of their own for pods of several",
        {"single": WHOLE, "several": WHOLE},
        lambda ask: "single" if ask.gpus == 1 else "several",
        frozenset({"several"}),
    ),
    "slots": Arrangement(
        "shares of 8, 4 and 2 slots a GPU: who asks for a part gets the smallest slot that has it; whole GPUs beside",
        {**{name: slots(per_gpu) for name, per_gpu in SLOTS.items()}, "whole": WHOLE},
        _smallest_slot,
    ),
    "claims": Arrangement(
        "one share of claims for parts, of the size asked; whole GPUs beside",
        {"parts": CLAIMS, "whole": WHOLE},
        lambda ask: "parts" if ask.milli < 1000 else "whole",
    ),
    "allClaims": Arrangement(
        "one share of claims for parts and for single whole GPUs, as claims of 100 %; nodes beside for pods of several",
        {"parts": CLAIMS, "whole": WHOLE},
        lambda ask: "parts" if ask.gpus == 1 else "whole",
        frozenset({"whole"}),
    ),
}


def most_needed(arrangement: Arrangement, jobs: Sequence[Job]) -> dict[str, float]:
    """The most GPUs by pool: those that its pods need in its busiest moment, if each began at once."""
    most = {}
    requests = [arrangement.request(job.ask) for job in jobs]
    for name, pool in arrangement.pools.items():
        mine = [(job, request.units) for job, request in zip(jobs, requests, strict=True) if request.pool == name]
        begins = np.array([job.begins for job, _ in mine])
        ends = begins + np.array([job.seconds for job, _ in mine])
        units = np.array([units for _, units in mine])
        order = np.argsort(np.concatenate((begins, ends)), kind="stable")
        running = np.cumsum(np.concatenate((units, -units))[order])
        most[name] = float(running.max(initial=0)) / pool.per_gpu
    return most


def nodes_of(shapes: Mapping[Shape, int], gpus: int, seed: int) -> list[Shape]:
    """The trace's nodes in its proportions, as many as have `gpus` GPUs, in an order by lot."""
    scale = gpus / sum(shape.gpus * count for shape, count in shapes.items())
    chosen = [shape for shape, count in shapes.items() for _ in range(round(count * scale))]
    single = min(shapes, key=lambda shape: shape.gpus)
    while sum(shape.gpus for shape in chosen) + single.gpus <= gpus:
        chosen.append(single)
    while sum(shape.gpus for shape in chosen) > gpus:
        chosen.remove(min(chosen, key=lambda shape: shape.gpus))
    random.Random(seed).shuffle(chosen)
    return chosen


def divide(nodes: Sequence[Shape], need: Mapping[str, float], large: Collection[str]) -> list[str]:
    """The pool of each node: each pool gets its part of the GPUs, of shapes as they come.

    Pools of `large` get no node that is too small for the largest pod. ValueError where one that is needed gets none.
    """
    whole = sum(need.values())
    given = dict.fromkeys(need, 0)
    pool_names = []
    seen = 0
    for node in nodes:
        seen += node.gpus
        behind = {
            name: value / whole * seen - given[name]
            for name, value in need.items()
            if name not in large or node.gpus >= LARGEST
        }
        name = max(behind, key=lambda name: behind[name])
        given[name] += node.gpus
        pool_names.append(name)
    missing = [name for name, value in need.items() if value and not given[name]]
    if missing:
        raise ValueError(f"{seen} GPUs are too few: no node is left for {', '.join(missing)}")
    return pool_names
