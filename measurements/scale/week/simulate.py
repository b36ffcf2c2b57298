"""A week of a cluster, from event to event: who is placed where, who waits, and how the GPUs are used. Pure.

A pod that fits nowhere waits. Only where another pod ends can it begin, so there it is tried, the pod that came first
before others; smaller pods overtake larger ones, as in the scheduler's queue. Once placed, a pod runs as long as its
run in the trace. Not modelled: the time of scheduling and of starting, the queue's back-off of up to 10 s, preemption,
and quota.
"""

import heapq
import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gpushare.api.gpushare import Placement
from measurements.scale.week.arrangements import Arrangement, Pool
from measurements.scale.week.demand import DAY, WEEK, Job
from measurements.scale.week.gpus import NodeGpus
from measurements.scale.week.scheduler import GPU_WEIGHT, PoolNodes, Request, Scheduler
from measurements.scale.week.trace import Ask, Shape

SAMPLE_SECONDS = DAY / 24


@dataclass(frozen=True, slots=True)
class Wait:
    """The wait of a pod that came in the week. `seconds`: up to the week's end where it was not placed."""

    ask: Ask
    seconds: float
    placed: bool


@dataclass(frozen=True, slots=True)
class Sample:
    """A sample at one time, in GPUs. `rounded`: what pods have beyond what they asked for. `free`: what no pod has.

    Of `free`, what the average arriving pod cannot use, by why: `elsewhere` is on nodes that offer something else than
    it asks for, `scattered` on nodes that have too little of it in one place, `without_cpu` on nodes that have enough
    of it and too little CPU or memory.
    """

    granted: float
    rounded: float
    in_use: int
    free: float
    elsewhere: float
    scattered: float
    without_cpu: float
    waiting: int

    @property
    def unusable(self) -> float:
        return self.elsewhere + self.scattered + self.without_cpu


@dataclass(frozen=True, slots=True)
class Outcome:
    waits: Sequence[Wait]
    samples: Sequence[Sample]
    most_pods: int
    """The most pods on one node at one time; Kubernetes' bound is 110."""


class _PoolState:
    def __init__(self, pool: Pool, position: Sequence[int], shapes: Sequence[Shape], placement: Placement) -> None:
        self.pool = pool
        self.gpus: list[NodeGpus] = [pool.gpus(shape.gpus, placement) for shape in shapes]
        self.nodes = PoolNodes(
            np.array(position, dtype=np.int64),
            np.array([[shape.cpu_milli for shape in shapes], [shape.memory_mib for shape in shapes]], dtype=np.int64),
            np.array([shape.gpus * pool.per_gpu for shape in shapes], dtype=np.int64),
            np.array([gpus.room() for gpus in self.gpus], dtype=np.int64),
            scored=pool.extended,
        )
        self.pods = [0] * len(shapes)
        self.waiting: dict[Request, deque[int]] = {}
        self.in_use = 0

    def place(self, node: int, request: Request) -> object:
        gpus = self.gpus[node]
        self.in_use -= gpus.in_use
        taken = gpus.take(request.units)
        self._changed(node, request, 1)
        return taken

    def end(self, node: int, request: Request, taken: object) -> None:
        gpus = self.gpus[node]
        self.in_use -= gpus.in_use
        gpus.give_back(taken)
        self._changed(node, request, -1)

    def _changed(self, node: int, request: Request, sign: int) -> None:
        gpus = self.gpus[node]
        self.in_use += gpus.in_use
        self.nodes.change(node, request, sign)
        self.nodes.room[node] = gpus.room()
        self.pods[node] += sign

    def first_that_fits(self, node: int) -> Request | None:
        fitting = [request for request in self.waiting if self.nodes.fits(node, request)]
        return min(fitting, key=lambda request: self.waiting[request][0], default=None)

    def take_first(self, request: Request) -> int:
        queue = self.waiting[request]
        number = queue.popleft()
        if not queue:
            del self.waiting[request]
        return number


class Simulation:
    def __init__(
        self,
        arrangement: Arrangement,
        shapes: Sequence[Shape],
        pools: Sequence[str],
        jobs: Sequence[Job],
        seed: int,
        *,
        packed: bool,
        gpu_weight: int = GPU_WEIGHT,
    ) -> None:
        """`pools`: of each node its pool. `jobs`: by arrival. `packed`: by the scheduler, and by shares of slots."""
        self._arrangement = arrangement
        self._jobs = jobs
        self._requests: dict[Ask, Request] = {ask: arrangement.request(ask) for ask in {job.ask for job in jobs}}
        self._scheduler = Scheduler(len(shapes), random.Random(seed), packed=packed, gpu_weight=gpu_weight)
        self._pools: Mapping[str, _PoolState] = {
            name: _PoolState(
                pool,
                [number for number, mine in enumerate(pools) if mine == name],
                [shape for shape, mine in zip(shapes, pools, strict=True) if mine == name],
                Placement.PACK if packed else Placement.SPREAD,
            )
            for name, pool in arrangement.pools.items()
        }
        self._gpus = sum(shape.gpus for shape in shapes)
        self._began: dict[int, float] = {}
        self._ending: list[tuple[float, int, str, int, object]] = []
        self._granted = 0.0
        self._taken = 0.0
        self._samples: list[Sample] = []
        self._most_pods = 0
        arrivals: dict[Request, int] = {}
        for job in jobs:
            if job.arrival >= 0:
                request = self._requests[job.ask]
                arrivals[request] = arrivals.get(request, 0) + 1
        whole = sum(arrivals.values())
        self._popular = {request: count / whole for request, count in arrivals.items()}

    def run(self) -> Outcome:
        sample = 0.0
        for number, job in enumerate(self._jobs):
            now = job.begins
            while sample < now:
                self._until(sample)
                self._sample()
                sample += SAMPLE_SECONDS
            self._until(now)
            self._arrive(number, now)
        while sample < WEEK:
            self._until(sample)
            self._sample()
            sample += SAMPLE_SECONDS
        self._until(WEEK)
        waits = [
            Wait(job.ask, self._began.get(number, WEEK) - job.arrival, number in self._began)
            for number, job in enumerate(self._jobs)
            if job.arrival >= 0
        ]
        return Outcome(waits, self._samples, self._most_pods)

    def _arrive(self, number: int, now: float) -> None:
        request = self._requests[self._jobs[number].ask]
        pool = self._pools[request.pool]
        if request not in pool.waiting:
            node = self._scheduler.choose(pool.nodes, request)
            if node is not None:
                self._begin(number, request, pool, node, now)
                return
        pool.waiting.setdefault(request, deque()).append(number)

    def _begin(self, number: int, request: Request, pool: _PoolState, node: int, now: float) -> None:
        taken = pool.place(node, request)
        job = self._jobs[number]
        self._began[number] = now
        self._granted += job.ask.gpu
        self._taken += request.units / pool.pool.per_gpu
        self._most_pods = max(self._most_pods, pool.pods[node])
        if now + job.seconds < WEEK:
            heapq.heappush(self._ending, (now + job.seconds, number, request.pool, node, taken))

    def _until(self, now: float) -> None:
        """All that ends by then, and who gets the place."""
        while self._ending and self._ending[0][0] <= now:
            at, number, name, node, taken = heapq.heappop(self._ending)
            pool, ask = self._pools[name], self._jobs[number].ask
            request = self._requests[ask]
            pool.end(node, request, taken)
            self._granted -= ask.gpu
            self._taken -= request.units / pool.pool.per_gpu
            while pool.waiting and (first := pool.first_that_fits(node)) is not None:
                self._begin(pool.take_first(first), first, pool, node, at)

    def _sample(self) -> None:
        free = self._gpus - self._taken
        elsewhere = scattered = without_cpu = 0.0
        for request, part in self._popular.items():
            pool = self._pools[request.pool]
            left = (pool.nodes.units - pool.nodes.units_used) / pool.pool.per_gpu
            here, together = float(left.sum()), float(left[pool.nodes.room >= request.units].sum())
            elsewhere += part * (free - here)
            scattered += part * (here - together)
            without_cpu += part * (together - float(left[pool.nodes.feasible(request)].sum()))
        self._samples.append(
            Sample(
                granted=self._granted,
                rounded=self._taken - self._granted,
                in_use=sum(pool.in_use for pool in self._pools.values()),
                free=free,
                elsewhere=elsewhere,
                scattered=scattered,
                without_cpu=without_cpu,
                waiting=sum(len(queue) for pool in self._pools.values() for queue in pool.waiting.values()),
            )
        )
