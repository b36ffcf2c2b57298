"""Which node kube-scheduler 1.37 takes for a pod, by its own sums. Pure, in integers as it has them.

Modelled: the filter and the scores of NodeResourcesFit and NodeResourcesBalancedAllocation (pkg/scheduler/framework/
plugins/noderesources), weights of 1; how many feasible nodes are looked at, and from which node on (schedule_one.go);
a choice by lot among the best. The other default plugins give all nodes the same score where pods have no affinity,
tolerations, spreading or images that only some nodes have.
Claims are not in the scores: the scheduler sees a node's ResourceSlice in its filter alone.
"""

import random
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MAX_SCORE = 100
LEAST_NODES, LEAST_PERCENT = 100, 5
GPU_WEIGHT = 5
"""The weight of the pod's extended resource where packed, beside 1 for CPU and 1 for memory, unless said otherwise."""

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Request:
    """`units`: of what the pool's nodes offer: GPUs, slots, or percent of one GPU."""

    cpu_milli: int
    memory_mib: int
    pool: str
    units: int


def nodes_to_find(nodes: int) -> int:
    """How many feasible nodes are enough."""
    if nodes < LEAST_NODES:
        return nodes
    percent = max(LEAST_PERCENT, 50 - nodes // 125)
    return max(LEAST_NODES, nodes * percent // 100)


class PoolNodes:
    """The nodes that offer one thing, and what is used of them.

    `position`: where each stands in the scheduler's list of all nodes. `units`: what each offers together; `room`: the
    most that one pod may get there. `scored`: whether it is an extended resource, which the packed configuration
    counts.
    """

    def __init__(self, position: Ints, capacity: Ints, units: Ints, room: Ints, *, scored: bool) -> None:
        self.position = position
        self.capacity = capacity
        """Rows: CPU in thousandths, memory in MiB."""
        self.used = np.zeros_like(capacity)
        self._left = capacity.copy()
        self.units = units
        self.units_used = np.zeros_like(units)
        self.room = room
        self.scored = scored
        self._balance = np.full(len(position), MAX_SCORE, dtype=np.int64)

    def fits(self, node: int, request: Request) -> bool:
        return bool(
            self.room[node] >= request.units
            and self._left[0, node] >= request.cpu_milli
            and self._left[1, node] >= request.memory_mib
        )

    def feasible(self, request: Request) -> Ints:
        cpu, memory = self._left
        fit = (cpu >= request.cpu_milli) & (memory >= request.memory_mib) & (self.room >= request.units)
        return np.flatnonzero(fit)

    def change(self, node: int, request: Request, sign: int) -> None:
        """A pod comes (1) or goes (-1). `room` is the GPUs' own business."""
        self.used[0, node] += sign * request.cpu_milli
        self.used[1, node] += sign * request.memory_mib
        self.units_used[node] += sign * request.units
        self._left[0, node] -= sign * request.cpu_milli
        self._left[1, node] -= sign * request.memory_mib
        cpu, memory = self.used[0, node] / self.capacity[0, node], self.used[1, node] / self.capacity[1, node]
        self._balance[node] = int((1 - abs((cpu - memory) / 2)) * MAX_SCORE)

    def scores(self, nodes: Ints, request: Request, *, packed: bool, gpu_weight: int = GPU_WEIGHT) -> Ints:
        """NodeResourcesFit's and NodeResourcesBalancedAllocation's together, of feasible nodes.

        `gpu_weight`: of the extended resource, where `packed`.
        """
        capacity = self.capacity.take(nodes, axis=1)
        used = self.used.take(nodes, axis=1)
        used[0] += request.cpu_milli
        used[1] += request.memory_mib
        parts = used / capacity
        balance = ((1 - np.abs((parts[0] - parts[1]) / 2)) * MAX_SCORE).astype(np.int64)
        balanced = MAX_SCORE // 2 + (MAX_SCORE // 2 + balance - self._balance.take(nodes)) // 2
        each = (used if packed else capacity - used) * MAX_SCORE // capacity
        if packed and self.scored:
            units = (self.units_used.take(nodes) + request.units) * MAX_SCORE // self.units.take(nodes)
            fit = (each[0] + each[1] + gpu_weight * units) // (2 + gpu_weight)
        else:
            fit = (each[0] + each[1]) // 2
        total: Ints = fit + balanced
        return total


class Scheduler:
    """Chooses nodes of pools; keeps the place in the list of all `nodes` from which the next pod's search goes on."""

    def __init__(self, nodes: int, chance: random.Random, *, packed: bool, gpu_weight: int = GPU_WEIGHT) -> None:
        self._nodes = nodes
        self._enough = nodes_to_find(nodes)
        self._chance = chance
        self._packed = packed
        self._gpu_weight = gpu_weight
        self._next = 0

    def choose(self, pool: PoolNodes, request: Request) -> int | None:
        """The node by its number in the pool; None where the pod fits on none."""
        best = self.best(pool, request)
        if not len(best):
            return None
        return int(best[int(self._chance.random() * len(best))]) if len(best) > 1 else int(best[0])

    def best(self, pool: PoolNodes, request: Request) -> Ints:
        """The nodes among which the lot decides."""
        feasible = pool.feasible(request)
        if len(feasible) > self._enough:
            begin = int(pool.position.take(feasible).searchsorted(self._next))
            end = begin + self._enough
            feasible = (
                feasible[begin:end]
                if end <= len(feasible)
                else np.concatenate((feasible[begin:], feasible[: end - len(feasible)]))
            )
            self._next = (int(pool.position[feasible[-1]]) + 1) % self._nodes
        if len(feasible) < 2:
            return feasible
        scores = pool.scores(feasible, request, packed=self._packed, gpu_weight=self._gpu_weight)
        best: Ints = feasible[scores == scores.max()]
        return best
