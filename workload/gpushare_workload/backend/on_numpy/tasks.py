"""The computations of the kernels, on the CPU: step by step, not by the closed form that checks them."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from gpushare_workload.backend.filters import ChunkFilter, taps
from gpushare_workload.backend.interface import Field, LaunchRecord, Span, UnsupportedError, Vector
from gpushare_workload.backend.work import CHAINS, FACTOR, PERIOD, Counts, Floats, LoadKind, Work, first_difference

SLOWER = 256
"""A CPU needs seconds for a launch of a GPU's size: each block does 1/SLOWER of the work here."""

LaunchKernel = Callable[[float], None]
"""Queues a kernel of that many ms on the simulated GPU."""
Wait = Callable[[], None]


def shrunk(work: Work) -> Work:
    """The part of `work` that a CPU does."""
    return replace(work, iterations=max(1, work.iterations // SLOWER), elements=max(1, work.elements // SLOWER))


def compute(work: Work) -> Counts:
    """The result of one launch."""
    thread = np.arange(work.threads, dtype=np.int64) % PERIOD
    values = [(thread + chain).astype(np.float32) for chain in range(CHAINS)]
    unit = np.float32(1.0)
    for _ in range(work.iterations):
        for value in values:
            np.multiply(value, unit, out=value)
            np.add(value, unit, out=value)
    sums: Floats = np.sum(values, axis=0, dtype=np.float32)
    return sums.astype(np.uint32)


def filtered(chosen: ChunkFilter, inputs: Sequence[Floats]) -> Floats:
    """The chunk that a filter makes of its inputs. Sums are taken in double."""
    values = inputs[0]
    if chosen is ChunkFilter.ADD:
        return values + inputs[1]
    if not len(values):
        return values.copy()
    if chosen is ChunkFilter.SIGNAL:
        convolved: Floats = np.convolve(values, taps())[: len(values)]
        return convolved
    spread = values.std(dtype=np.float64)
    centred = values - values.mean(dtype=np.float64)
    result: Floats = (centred / spread if spread else np.zeros_like(centred)).astype(np.float32)
    return result


class NumpyTask:
    """Fixed work on the CPU. `launch` and `wait` act on the simulated GPU, or do nothing without one."""

    def __init__(self, work: Work, launch: LaunchKernel, wait: Wait, milliseconds: float) -> None:
        self.work = shrunk(work)
        self._launch, self._wait, self._milliseconds = launch, wait, milliseconds
        match work.kind:
            case LoadKind.COMPUTE:
                self._result = np.zeros(self.work.threads, np.uint32)
            case LoadKind.MEMORY:
                self._result, self._inputs = np.zeros(self.work.values, np.uint32), self.work.inputs()
            case LoadKind.TRANSFER:
                self._result = self.work.carried()

    def launch(self, lane: int = 0) -> None:
        self._launch(self._milliseconds)
        match self.work.kind:
            case LoadKind.COMPUTE:
                self._result += compute(self.work)
            case LoadKind.MEMORY:
                left, right = self._inputs
                self._result += (left + np.float32(FACTOR) * right).astype(np.uint32)
            case LoadKind.TRANSFER:
                self._result = np.roll(self._result, -1)

    def captured(self, launches: int, lane: int = 0) -> Callable[[], None]:
        def replay() -> None:
            for _ in range(launches):
                self.launch(lane)

        return replay

    def timed_launch(self, began: float) -> Span:
        start = time.perf_counter()
        self.launch()
        self._wait()
        return Span((start - began) * 1000, (time.perf_counter() - began) * 1000)

    def wrong(self, launches: int) -> str | None:
        self._wait()
        return first_difference(self._result, self.work.expected(launches))

    def close(self) -> None:
        self._wait()


class NumpyRecording:
    """Recorded launches on the CPU: their times are the CPU's, and there are no SMs."""

    def __init__(self, task: NumpyTask, wait: Wait, launches: int) -> None:
        self._task, self._wait, self._most = task, wait, launches
        self._records: list[LaunchRecord] = []

    @property
    def work(self) -> Work:
        return self._task.work

    def launch(self) -> None:
        start = time.monotonic_ns()
        self._task.launch()
        self._wait()
        if len(self._records) < self._most:
            self._records.append(LaunchRecord(start, time.monotonic_ns(), 0, 0, 0))

    def records(self) -> list[LaunchRecord]:
        return list(self._records)

    def wrong(self, launches: int) -> str | None:
        return self._task.wrong(launches)

    def close(self) -> None:
        self._task.close()


class NumpyChain:
    """Small dependent kernels on the CPU."""

    def __init__(self, kernels: int, elements: int, launch: LaunchKernel, wait: Wait, milliseconds: float) -> None:
        self._kernels, self._launch, self._wait, self._milliseconds = kernels, launch, wait, milliseconds
        self._values = np.arange(elements, dtype=np.float32) % np.float32(PERIOD)

    def launch(self) -> None:
        for _ in range(self._kernels):
            self._launch(self._milliseconds)
            self._values += np.float32(1.0)

    def replay(self) -> None:
        self.launch()

    def wrong(self, passes: int) -> str | None:
        self._wait()
        start = np.arange(len(self._values), dtype=np.float32) % np.float32(PERIOD)
        return first_difference(self._values, start + np.float32(passes * self._kernels))


class NumpySlab:
    """A slab of the Jacobi solver on the CPU. It has no CUDA IPC."""

    def __init__(self, values: Field, source: Field, spacing: float, launch: LaunchKernel, milliseconds: float) -> None:
        self._values, self._source, self._spacing = values.copy(), source, spacing
        self._launch, self._milliseconds = launch, milliseconds

    def sweep(self) -> float:
        self._launch(self._milliseconds)
        old, fresh = self._values, self._values.copy()
        around = old[:-2, 1:-1] + old[2:, 1:-1] + old[1:-1, :-2] + old[1:-1, 2:]
        fresh[1:-1, 1:-1] = 0.25 * (around + self._spacing**2 * self._source[1:-1, 1:-1])
        self._values = fresh
        return float(np.max(np.abs(fresh - old), initial=0.0))

    def edges(self) -> tuple[Vector, Vector]:
        return self._values[1].copy(), self._values[-2].copy()

    def set_halos(self, above: Vector | None, below: Vector | None) -> None:
        if above is not None:
            self._values[0] = above
        if below is not None:
            self._values[-1] = below

    def values(self) -> Field:
        return self._values.copy()

    def handle(self) -> bytes:
        raise UnsupportedError("CUDA IPC needs a GPU and CuPy: exchange halos through host memory instead")

    def connect(self, above: bytes | None, below: bytes | None) -> None:
        self.handle()

    def publish(self, turn: int) -> None:
        self.handle()

    def fetch(self, turn: int) -> None:
        self.handle()

    def disconnect(self) -> None: ...

    def close(self) -> None: ...
