"""The exchange of edge rows between neighbouring slabs: three transports with one interface.

Every turn is `publish`, a barrier between the neighbours, `fetch`.

Guarantees: the rows of two turns are kept apart, so that a neighbour that is one turn ahead overwrites no row that has
still to be read.
"""

from collections.abc import MutableSequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from gpushare_workload.backend.interface import GpuError, Slab, UnsupportedError
from gpushare_workload.processes.shared_array import SharedArray

TURNS = 2
FIRST, LAST = 0, 1
DEVICE_UNINITIALIZED = 201


class HaloTransport(StrEnum):
    """How a row travels: by a Manager list, by shared host memory, or by CUDA IPC."""

    MANAGER = "manager"
    HOST = "host"
    IPC = "ipc"


class Halos(Protocol):
    def publish(self, turn: int) -> None: ...

    def fetch(self, turn: int) -> None: ...


class ManagerHalos:
    """Rows pickled into a list in a separate process and out of it: what a beginner's program does."""

    def __init__(self, slab: Slab, index: int, parts: int, rows: MutableSequence[Any]) -> None:
        """`rows` has an entry for each turn and part: [turn * parts + part] is (first row, last row)."""
        self._slab, self._index, self._parts, self._rows = slab, index, parts, rows

    def publish(self, turn: int) -> None:
        self._rows[self._position(turn, self._index)] = self._slab.edges()

    def fetch(self, turn: int) -> None:
        above = below = None
        if self._index > 0:
            above = self._rows[self._position(turn, self._index - 1)][LAST]
        if self._index + 1 < self._parts:
            below = self._rows[self._position(turn, self._index + 1)][FIRST]
        self._slab.set_halos(above, below)

    def _position(self, turn: int, part: int) -> int:
        return turn % TURNS * self._parts + part


class HostHalos:
    """Rows copied to host memory that all processes share, and from there to the neighbour's GPU memory."""

    def __init__(self, slab: Slab, index: int, parts: int, shared: SharedArray) -> None:
        """`shared` is (TURNS, parts, 2, columns) of doubles."""
        self._slab, self._index, self._parts, self._rows = slab, index, parts, shared.array

    def publish(self, turn: int) -> None:
        self._rows[turn % TURNS, self._index, FIRST], self._rows[turn % TURNS, self._index, LAST] = self._slab.edges()

    def fetch(self, turn: int) -> None:
        rows = self._rows[turn % TURNS]
        above = rows[self._index - 1, LAST] if self._index > 0 else None
        below = rows[self._index + 1, FIRST] if self._index + 1 < self._parts else None
        self._slab.set_halos(above, below)

    @staticmethod
    def storage(parts: int, columns: int) -> SharedArray:
        """The memory that all parts share."""
        return SharedArray((TURNS, parts, 2, columns), np.float64)


def address(slab: Slab) -> tuple[str, bytes]:
    """The CUDA IPC address of this slab's edges: this process's PID namespace, and the handle.

    Raises UnsupportedError without CuPy and a GPU.
    """
    return _pid_namespace(), slab.handle()


def connect(slab: Slab, above: tuple[str, bytes] | None, below: tuple[str, bytes] | None) -> None:
    """Opens the neighbours' edges. Raises UnsupportedError if a neighbour is in another PID namespace.

    CUDA IPC between two clients of one MPS daemon works within one PID namespace and fails across namespaces with error
    201 (measured). So it works within a container, and not between pods.
    """
    own = _pid_namespace()
    for neighbour in (above, below):
        if neighbour is not None and neighbour[0] != own:
            raise UnsupportedError(_refusal(f"{neighbour[0]} is not {own}"))
    try:
        slab.connect(above and above[1], below and below[1])
    except GpuError as error:
        if error.code == DEVICE_UNINITIALIZED:
            raise UnsupportedError(_refusal(str(error))) from error
        raise


def _pid_namespace() -> str:
    return str(Path("/proc/self/ns/pid").readlink())


def _refusal(detail: str) -> str:
    return f"CUDA IPC works only within one PID namespace, so not between pods ({detail}): exchange through host memory"
