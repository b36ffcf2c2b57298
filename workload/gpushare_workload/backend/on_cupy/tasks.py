"""Fixed amounts of work, chains and chunks on a GPU.

Guarantees: the arguments of a launch are made once, so that a launch costs the host as little as possible.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import cupy
import cupyx
import numpy as np

from gpushare_workload.backend.interface import Span
from gpushare_workload.backend.on_cupy.errors import CUDA_ERRORS, translated
from gpushare_workload.backend.on_cupy.kernels import Kernels
from gpushare_workload.backend.work import BLOCK, FACTOR, PERIOD, Counts, Floats, LoadKind, Work, first_difference

HOST_TO_DEVICE, DEVICE_TO_HOST = 1, 2
WORD = 4
ONE = np.float32(1.0)


class CupyTask:
    def __init__(self, kernels: Kernels, work: Work) -> None:
        self.work = work
        self._kernels = kernels
        self._buffers: list[Any] = []
        """Compute: results. Memory: sums, left, right. Transfer: on the GPU, then in pinned memory."""
        self._arguments: tuple[Any, ...] = ()
        """Arguments of the kernel, or of the copies."""
        translated(self._fill)

    def _fill(self) -> None:
        work = self.work
        match work.kind:
            case LoadKind.COMPUTE:
                self._buffers = [cupy.zeros(work.threads, cupy.uint32)]
                self._arguments = (*self._buffers, np.int32(work.iterations), ONE)
            case LoadKind.MEMORY:
                self._buffers = [cupy.zeros(work.values, cupy.uint32), *map(cupy.asarray, work.inputs())]
                self._arguments = (*self._buffers, np.int32(work.elements), np.float32(FACTOR))
            case LoadKind.TRANSFER:
                on_gpu, on_host = cupy.zeros(work.values, cupy.uint32), cupyx.empty_pinned(work.values, np.uint32)
                on_host[:] = work.carried()
                self._buffers = [on_gpu, on_host]
                self._arguments = (on_gpu.data.ptr, on_host.ctypes.data, on_gpu.nbytes)
        cupy.cuda.runtime.deviceSynchronize()

    def launch(self, lane: int = 0) -> None:
        translated(lambda: self._launch(self._kernels.lane(lane)))

    def captured(self, launches: int, lane: int = 0) -> Callable[[], None]:
        stream = self._kernels.lane(lane)

        def queue() -> None:
            for _ in range(launches):
                self._launch(stream)

        graph = translated(lambda: capture(stream, queue))
        return lambda: translated(lambda: graph.launch(stream))

    def _launch(self, stream: Any) -> None:
        if self.work.kind is not LoadKind.TRANSFER:
            self._kernels[self.work.kind.value]((self.work.blocks,), (BLOCK,), self._arguments, stream=stream)
            return
        # There and back, one place further on: without a kernel, the data itself counts the launches.
        on_gpu, on_host, size = self._arguments
        copy = cupy.cuda.runtime.memcpyAsync
        copy(on_gpu, on_host, size, HOST_TO_DEVICE, stream.ptr)
        copy(on_host, on_gpu + WORD, size - WORD, DEVICE_TO_HOST, stream.ptr)
        copy(on_host + size - WORD, on_gpu, WORD, DEVICE_TO_HOST, stream.ptr)

    def wrong(self, launches: int) -> str | None:
        def result() -> Counts:
            cupy.cuda.runtime.deviceSynchronize()
            got: Counts = self._buffers[1] if self.work.kind is LoadKind.TRANSFER else self._buffers[0].get()
            return got

        return first_difference(translated(result), self.work.expected(launches))

    def close(self) -> None:
        translated(cupy.cuda.runtime.deviceSynchronize)
        self._arguments = ()
        self._buffers.clear()
        translated(cupy.get_default_memory_pool().free_all_blocks)


def capture(stream: Any, queue: Callable[[], None]) -> Any:
    """A graph of what `queue` puts on `stream`, without running it.

    `stream` is never the default stream, which cannot be captured. A failed capture is ended too: otherwise the stream
    could not be used any more.
    """
    stream.begin_capture()
    try:
        queue()
    except BaseException:
        with suppress(*CUDA_ERRORS):
            stream.end_capture()
        raise
    return stream.end_capture()


def timed_launches(kernels: Kernels, launches: Sequence[tuple[CupyTask, int]]) -> list[Span]:
    pairs = []
    for task, number in launches:
        lane = kernels.lane(number)
        start = lane.record()
        task.launch(number)
        pairs.append((start, lane.record()))
    cupy.cuda.runtime.deviceSynchronize()
    elapsed = cupy.cuda.get_elapsed_time
    return [Span(elapsed(pairs[0][0], start), elapsed(pairs[0][0], end)) for start, end in pairs]


class CupyChain:
    def __init__(self, kernels: Kernels, count: int, elements: int) -> None:
        self._kernels, self._count = kernels, count
        self._start = np.arange(elements, dtype=np.float32) % np.float32(PERIOD)
        self._graph: Any = None
        self._values = translated(lambda: cupy.asarray(self._start))
        translated(cupy.cuda.runtime.deviceSynchronize)

    def _queue(self) -> None:
        elements, stream = len(self._start), self._kernels.lane(0)
        grid, arguments = (-(-elements // BLOCK),), (self._values, np.int32(elements))
        for _ in range(self._count):
            self._kernels["increment"](grid, (BLOCK,), arguments, stream=stream)

    def launch(self) -> None:
        translated(self._queue)

    def replay(self) -> None:
        if self._graph is None:
            self._graph = translated(lambda: capture(self._kernels.lane(0), self._queue))
        translated(lambda: self._graph.launch(self._kernels.lane(0)))

    def wrong(self, passes: int) -> str | None:
        def result() -> Floats:
            cupy.cuda.runtime.deviceSynchronize()
            got: Floats = self._values.get()
            return got

        return first_difference(translated(result), self._start + np.float32(passes * self._count))


def process_chunks(kernels: Kernels, chunks: Floats, iterations: int, lanes: int, pinned: bool) -> tuple[Floats, float]:
    """Backend.process_chunks. Each lane has one buffer on the GPU, which is free again for the lane's next chunk."""
    count, length = chunks.shape
    empty = cupyx.empty_pinned if pinned else np.empty
    source, target = empty(chunks.shape, np.float32), empty(chunks.shape, np.float32)
    source[:], target[:] = chunks, 0
    buffers = [cupy.empty(length, cupy.float32) for _ in range(lanes)]
    streams = [kernels.lane(number) for number in range(lanes)]
    cupy.cuda.runtime.deviceSynchronize()
    copy, size, grid = cupy.cuda.runtime.memcpyAsync, length * 4, (-(-length // BLOCK),)
    first = streams[0].record()
    for stream in streams[1:]:
        stream.wait_event(first)
    for number in range(count):
        buffer, stream = buffers[number % lanes], streams[number % lanes]
        copy(buffer.data.ptr, source[number].ctypes.data, size, HOST_TO_DEVICE, stream.ptr)
        arguments = (buffer, np.int32(length), np.int32(iterations), ONE)
        kernels["process"](grid, (BLOCK,), arguments, stream=stream)
        copy(target[number].ctypes.data, buffer.data.ptr, size, DEVICE_TO_HOST, stream.ptr)
    for stream in streams[1:]:
        streams[0].wait_event(stream.record())
    last = streams[0].record()
    cupy.cuda.runtime.deviceSynchronize()
    return np.array(target), float(cupy.cuda.get_elapsed_time(first, last))
