"""The exchange of edge rows: each part gets its neighbours' rows, and CUDA IPC is refused where it cannot work."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpushare_workload.backend.interface import GpuError, UnsupportedError
from gpushare_workload.solver import halos
from gpushare_workload.solver.halos import HaloTransport, HostHalos, ManagerHalos


class OneEdge:
    """A slab whose edges are numbers, and whose IPC fails with `code`."""

    def __init__(self, first: float, last: float, code: int = 0) -> None:
        self.rows, self.code = (np.array([first]), np.array([last])), code
        self.halos: tuple[Any, Any] = (None, None)

    def edges(self) -> tuple[Any, Any]:
        return self.rows

    def set_halos(self, above: Any, below: Any) -> None:
        self.halos = (above, below)

    def connect(self, above: bytes | None, below: bytes | None) -> None:
        if self.code:
            raise GpuError(self.code, "invalid device context")
        self.halos = (above, below)


@pytest.mark.parametrize("transport", [HaloTransport.HOST, HaloTransport.MANAGER])
def test_each_part_gets_its_neighbours_edges_and_none_at_the_grids_edge(transport: HaloTransport) -> None:
    slabs: list[Any] = [OneEdge(1, 2), OneEdge(3, 4), OneEdge(5, 6)]
    if transport is HaloTransport.HOST:
        storage = HostHalos.storage(parts=3, columns=1)
        exchanges: list[Any] = [HostHalos(slab, part, 3, storage) for part, slab in enumerate(slabs)]
    else:
        rows: list[Any] = [None] * (halos.TURNS * 3)
        exchanges = [ManagerHalos(slab, part, 3, rows) for part, slab in enumerate(slabs)]
    for exchange in exchanges:
        exchange.publish(1)
    slabs[1].rows = (np.array([30.0]), np.array([40.0]))
    exchanges[1].publish(2)
    for exchange in exchanges:
        exchange.fetch(1)
    assert [slab.halos for slab in slabs] == [(None, 3), (2, 5), (4, None)]


def test_ipc_across_pid_namespaces_is_refused_before_it_is_tried() -> None:
    slab: Any = OneEdge(1, 2)
    with pytest.raises(UnsupportedError, match=r"only within one PID namespace.*pid:\[1\] is not pid:\["):
        halos.connect(slab, ("pid:[1]", b"handle"), None)
    assert slab.halos == (None, None)


def test_ipc_that_cuda_refuses_with_201_is_reported_as_its_known_limit() -> None:
    own = str(Path("/proc/self/ns/pid").readlink())
    slab: Any = OneEdge(1, 2, code=201)
    with pytest.raises(UnsupportedError, match="so not between pods"):
        halos.connect(slab, (own, b"handle"), None)
    slab.code = 700
    with pytest.raises(GpuError, match="CUDA error 700"):
        halos.connect(slab, (own, b"handle"), None)


def test_ipc_opens_the_handles_of_both_sides() -> None:
    own = str(Path("/proc/self/ns/pid").readlink())
    slab: Any = OneEdge(1, 2)
    halos.connect(slab, (own, b"a"), (own, b"b"))
    assert slab.halos == (b"a", b"b")
