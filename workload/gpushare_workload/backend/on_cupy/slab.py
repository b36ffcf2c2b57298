"""A slab of the Jacobi solver on a GPU, with halos through CUDA IPC.

CUDA IPC works between two clients of one MPS daemon within one PID namespace, and fails across namespaces (measured).
"""

from typing import Any

import cupy
import numpy as np

from gpushare_workload.backend.interface import Field, Vector
from gpushare_workload.backend.on_cupy.errors import translated
from gpushare_workload.backend.on_cupy.kernels import Kernels

DEVICE_TO_DEVICE = 3
BLOCK = 128
TURNS = 2


class CupySlab:
    """Rows of the grid in GPU memory. See interface.Slab for what each call guarantees."""

    def __init__(self, kernels: Kernels, values: Field, source: Field, spacing: float) -> None:
        self._kernels, self._spacing_squared = kernels, np.float64(spacing * spacing)
        self._rows, self._columns = values.shape
        self._row_bytes = self._columns * 8
        self._mailbox = 0
        """Base address of a separate allocation, as CUDA IPC requires: [turn % 2][first, last row]."""
        self._neighbours: dict[str, int] = {}
        translated(lambda: self._fill(values, source))

    def _fill(self, values: Field, source: Field) -> None:
        # Both contain the fixed edges: a sweep writes only the inner values.
        self._old, self._fresh = cupy.asarray(values), cupy.asarray(values)
        self._source = cupy.asarray(source)
        self._change = cupy.zeros(1, cupy.uint64)

    def sweep(self) -> float:
        return translated(self._sweep)

    def _sweep(self) -> float:
        self._change.fill(0)
        # The halos of the current values are newer than those in the other array.
        self._fresh[0], self._fresh[-1] = self._old[0], self._old[-1]
        grid = (max(1, -(-(self._columns - 2) // BLOCK)), max(1, self._rows - 2))
        sizes = (self._spacing_squared, np.int32(self._rows), np.int32(self._columns))
        self._kernels["jacobi"](grid, (BLOCK,), (self._old, self._fresh, self._source, *sizes, self._change))
        self._old, self._fresh = self._fresh, self._old
        return float(self._change.get().view(np.float64)[0])

    def edges(self) -> tuple[Vector, Vector]:
        return translated(lambda: (self._old[1].get(), self._old[-2].get()))

    def set_halos(self, above: Vector | None, below: Vector | None) -> None:
        def copy() -> None:
            if above is not None:
                self._old[0].set(above)
            if below is not None:
                self._old[-1].set(below)

        translated(copy)

    def values(self) -> Field:
        result: Field = translated(self._old.get)
        return result

    def handle(self) -> bytes:
        def export() -> bytes:
            if not self._mailbox:
                self._mailbox = cupy.cuda.runtime.malloc(TURNS * 2 * self._row_bytes)
            handle: bytes = cupy.cuda.runtime.ipcGetMemHandle(self._mailbox)
            return handle

        return translated(export)

    def connect(self, above: bytes | None, below: bytes | None) -> None:
        for side, handle in (("above", above), ("below", below)):
            if handle is not None:
                self._neighbours[side] = self._open(handle)

    @staticmethod
    def _open(handle: bytes) -> int:
        return int(translated(lambda: cupy.cuda.runtime.ipcOpenMemHandle(handle)))

    def publish(self, turn: int) -> None:
        def copy() -> None:
            for place, row in enumerate((self._old[1], self._old[-2])):
                self._copy(self._slot(self._mailbox, turn, place), row.data.ptr)
            cupy.cuda.runtime.deviceSynchronize()

        translated(copy)

    def fetch(self, turn: int) -> None:
        def copy() -> None:
            # The halo above is the last row of the neighbour above; the halo below the first row of the one below.
            for side, row, place in (("above", self._old[0], 1), ("below", self._old[-1], 0)):
                if side in self._neighbours:
                    self._copy(row.data.ptr, self._slot(self._neighbours[side], turn, place))
            cupy.cuda.runtime.deviceSynchronize()

        translated(copy)

    def _slot(self, base: int, turn: int, place: int) -> int:
        slot: int = base + ((turn % TURNS) * 2 + place) * self._row_bytes
        return slot

    def _copy(self, target: int, source: int) -> None:
        cupy.cuda.runtime.memcpyAsync(target, source, self._row_bytes, DEVICE_TO_DEVICE, 0)

    def disconnect(self) -> None:
        def release() -> None:
            cupy.cuda.runtime.deviceSynchronize()
            while self._neighbours:
                cupy.cuda.runtime.ipcCloseMemHandle(self._neighbours.popitem()[1])

        translated(release)

    def close(self) -> None:
        def release() -> None:
            cupy.cuda.runtime.deviceSynchronize()
            if self._mailbox:
                mailbox: Any = self._mailbox
                self._mailbox = 0
                cupy.cuda.runtime.free(mailbox)

        translated(release)
