"""The filters of a pipeline in pieces, each on a lane of its own, and passes over managed memory."""

from collections.abc import Sequence
from typing import Any

import cupy
import numpy as np

from gpushare_workload.backend.filters import TAPS, ChunkFilter, taps
from gpushare_workload.backend.on_cupy.kernels import Kernels
from gpushare_workload.backend.on_cupy.tasks import DEVICE_TO_HOST, HOST_TO_DEVICE, ONE
from gpushare_workload.backend.work import BLOCK, Floats
from gpushare_workload.events import WrongError

WORD = 4
PART = 1 << 28
"""Floats of managed memory for one launch: the kernel counts them with an int."""
SLICE = 1 << 24
NO_SPREAD = 1e-12
"""Part of the mean of the squares: a smaller variance is rounding, and all values are equal."""


def whole(kernels: Kernels, chosen: ChunkFilter, inputs: Sequence[Floats]) -> Floats:
    """Backend.filter_chunk with one piece: copies from and to ordinary memory, on the default stream."""
    on_gpu = list(map(cupy.asarray, inputs))
    match chosen:
        case ChunkFilter.ADD:
            done = on_gpu[0] + on_gpu[1]
        case ChunkFilter.NORMALISE:
            centred = on_gpu[0] - on_gpu[0].mean(dtype=cupy.float64)
            spread = float(on_gpu[0].std(dtype=cupy.float64))
            done = (centred / spread if spread else cupy.zeros_like(centred)).astype(cupy.float32)
        case ChunkFilter.SIGNAL:
            length = len(inputs[0])
            done = cupy.empty(length, cupy.float32)
            sizes = (np.int32(0), np.int32(length), np.int32(TAPS))
            grid = (-(-length // BLOCK),)
            kernels["convolve"](grid, (BLOCK,), (on_gpu[0], cupy.asarray(taps()), done, *sizes))
    result: Floats = done.get()
    return result


def in_pieces(kernels: Kernels, chosen: ChunkFilter, inputs: Sequence[Floats], result: Floats, pieces: int) -> None:
    """Backend.filter_chunk with several pieces. Returns when `result` is complete."""
    length = len(result)
    on_gpu = [cupy.empty(length, cupy.float32) for _ in inputs]
    output, coefficients = cupy.empty(length, cupy.float32), cupy.asarray(taps())
    # The pool may hand out memory that another stream still uses.
    cupy.cuda.runtime.deviceSynchronize()
    each = -(-length // pieces)
    bounds = [(first, min(length, first + each)) for first in range(0, length, each)]
    lanes = [kernels.lane(number) for number in range(len(bounds))]
    if chosen is ChunkFilter.NORMALISE:
        _normalise(kernels, lanes, bounds, on_gpu[0], output, inputs, result)
        cupy.cuda.runtime.deviceSynchronize()
        return
    copied: list[Any] = []
    for lane, (first, end) in zip(lanes, bounds, strict=True):
        _copy_in(lane, on_gpu, inputs, first, end)
        size = np.int32(end - first)
        if chosen is ChunkFilter.ADD:
            left, right = (operand[first:end] for operand in on_gpu)
            _launch(kernels, "add", lane, end - first, left, right, output[first:end], size)
        else:
            # The first results of a piece need the last values of those before it.
            for event in copied:
                lane.wait_event(event)
            copied.append(lane.record())
            sizes = (np.int32(first), size, np.int32(TAPS))
            _launch(kernels, "convolve", lane, end - first, on_gpu[0], coefficients, output, *sizes)
        _copy_out(lane, output, result, first, end)
    cupy.cuda.runtime.deviceSynchronize()


def _normalise(
    kernels: Kernels,
    lanes: Sequence[Any],
    bounds: Sequence[tuple[int, int]],
    values: Any,
    output: Any,
    inputs: Sequence[Floats],
    result: Floats,
) -> None:
    """The sums of a piece are taken while the next one is copied; the scaling waits for all of them."""
    moments = []
    for lane, (first, end) in zip(lanes, bounds, strict=True):
        _copy_in(lane, [values], inputs, first, end)
        with lane:
            piece = values[first:end]
            moments.append((piece.sum(dtype=cupy.float64), cupy.square(piece.astype(cupy.float64)).sum()))
    cupy.cuda.runtime.deviceSynchronize()
    total, squares = (sum(float(sums[which]) for sums in moments) / len(result) for which in (0, 1))
    variance = squares - total * total
    factor = variance**-0.5 if variance > NO_SPREAD * squares else 0.0
    for lane, (first, end) in zip(lanes, bounds, strict=True):
        sizes = (np.int32(end - first), np.float64(total), np.float64(factor))
        _launch(kernels, "scale", lane, end - first, values[first:end], output[first:end], *sizes)
        _copy_out(lane, output, result, first, end)


def _copy_in(lane: Any, on_gpu: Sequence[Any], inputs: Sequence[Floats], first: int, end: int) -> None:
    for target, source in zip(on_gpu, inputs, strict=True):
        _copy(lane, target.data.ptr, source.ctypes.data, first, end, HOST_TO_DEVICE)


def _copy_out(lane: Any, output: Any, result: Floats, first: int, end: int) -> None:
    _copy(lane, result.ctypes.data, output.data.ptr, first, end, DEVICE_TO_HOST)


def _copy(lane: Any, target: int, source: int, first: int, end: int, direction: int) -> None:
    skip, size = first * WORD, (end - first) * WORD
    cupy.cuda.runtime.memcpyAsync(target + skip, source + skip, size, direction, lane.ptr)


def _launch(kernels: Kernels, name: str, lane: Any, elements: int, *arguments: Any) -> None:
    kernels[name]((-(-elements // BLOCK),), (BLOCK,), arguments, stream=lane)


def managed_passes(kernels: Kernels, size: int, passes: int) -> float:
    """Backend.managed_passes."""
    elements, lane = size // WORD, kernels.lane(0)
    memory = cupy.cuda.malloc_managed(elements * WORD)
    values = cupy.ndarray((elements,), cupy.float32, memptr=memory)
    parts = [values[first : first + PART] for first in range(0, elements, PART)]
    for part in parts:
        part.fill(0)
    cupy.cuda.runtime.deviceSynchronize()
    marks = []
    for _ in range(passes):
        marks.append(lane.record())
        for part in parts:
            _launch(kernels, "process", lane, part.size, part, np.int32(part.size), np.int32(1), ONE)
    marks.append(lane.record())
    cupy.cuda.runtime.deviceSynchronize()
    # In small parts: the comparison needs memory of its own.
    right = all(bool((values[first : first + SLICE] == passes).all()) for first in range(0, elements, SLICE))
    if not right:
        raise WrongError(f"{size} bytes of managed memory do not hold the sum of {passes} passes")
    return float(cupy.cuda.get_elapsed_time(marks[1], marks[-1]))
