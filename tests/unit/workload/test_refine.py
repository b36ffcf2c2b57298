"""Processes that refine one answer together reach that of one process, and say clearly what cannot work."""

import argparse
import json
import os
import signal
from io import StringIO
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare_workload.solver import halos
from gpushare_workload.solver import jacobi
from gpushare_workload.backend.interface import GpuError, UnsupportedError
from gpushare_workload.solver.halos import HostHalos, ManagerHalos, HaloTransport
from gpushare_workload.processes.outcomes import WorkerError
from gpushare_workload.solver.poisson_problem import PoissonProblem
from gpushare_workload.events import EventWriter, WrongError
from gpushare_workload.scenarios.cooperation import refine
from gpushare_workload.processes.stopping import Stop
from gpushare_workload.processes.worker import Worker

pytestmark = pytest.mark.usefixtures("nothing_left_behind")
OPTIONS: dict[str, Any] = {
    "backend": "numpy",
    "size": 10,
    "processes": 2,
    "halos": None,
    "tolerance": 1e-4,
    "sweeps": 1000,
    "look_every": 20,
}


def run(**options: Any) -> list[dict[str, Any]]:
    out = StringIO()
    refine.run(argparse.Namespace(**OPTIONS | options), EventWriter("refine", out), Stop())
    return [json.loads(line) for line in out.getvalue().splitlines()]


@given(size=st.integers(1, 40), data=st.data())
def test_the_slabs_cover_every_inner_row_once_and_overlap_by_their_halos(size: int, data: st.DataObject) -> None:
    parts = data.draw(st.integers(1, size))
    slabs = PoissonProblem(size).slabs(parts)
    assert [row for rows in slabs for row in range(rows.start + 1, rows.stop - 1)] == list(range(1, size + 1))
    assert all(rows.stop - rows.start >= 3 for rows in slabs)


@pytest.mark.parametrize("parts", [0, 4])
def test_more_processes_than_rows_are_refused(parts: int) -> None:
    with pytest.raises(ValueError, match=f"{parts} processes for 3 rows"):
        PoissonProblem(3).slabs(parts)


def test_the_bound_of_the_error_shrinks_with_the_grid_and_with_the_last_change() -> None:
    assert PoissonProblem(20).error_bound(0.0) < PoissonProblem(10).error_bound(0.0) < PoissonProblem(10).error_bound(1e-3)


def test_both_ways_through_the_host_reach_the_values_of_one_process_and_ipc_is_left_out_without_a_gpu() -> None:
    one, manager, host, ipc = run(processes=3)
    assert one["sweeps"] == manager["sweeps"] == host["sweeps"] > 100
    assert manager["difference_from_one_process"] == host["difference_from_one_process"] == 0
    assert one["error_from_exact"] < PoissonProblem(10).error_bound(one["last_change"])
    assert (one["backend"], one["timed"]) == ("numpy", False)
    assert (ipc["event"], ipc["halos"]) == ("left-out", "ipc")


def test_a_single_inner_point_and_a_process_for_each_row_work() -> None:
    assert run(size=1, processes=1, halos=[HaloTransport.HOST])[-1]["difference_from_one_process"] == 0
    assert run(size=3, processes=3, halos=[HaloTransport.HOST])[-1]["difference_from_one_process"] == 0


def test_ipc_that_is_asked_for_without_a_gpu_says_what_to_do_instead() -> None:
    with pytest.raises(UnsupportedError, match="CUDA IPC needs a GPU and CuPy: exchange halos through host memory"):
        run(halos=[HaloTransport.IPC])


def test_too_few_sweeps_are_told_as_such() -> None:
    with pytest.raises(WrongError, match="after 5 sweeps values still change"):
        run(sweeps=5)


def test_with_tolerance_zero_all_sweeps_are_done() -> None:
    assert [line["sweeps"] for line in run(sweeps=7, tolerance=0.0, halos=[HaloTransport.HOST])] == [7, 7]


class LosesHalos(HostHalos):
    def fetch(self, turn: int) -> None: ...


def loses_halos(worker: Worker, settings: refining.Settings, part: int, room: Any, *rest: Any) -> Any:
    refining.HostHalos = LosesHalos  # type: ignore[misc]
    return refining._solve(worker, settings, part, room, *rest)


def test_a_way_that_loses_the_halos_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    original = refining.refine

    def broken(settings: refining.Settings, stop: Stop) -> refining.Refined:
        with monkeypatch.context() as patch:
            if settings.parts > 1:
                patch.setattr(refining, "_solve", loses_halos)
            return original(settings, stop)

    monkeypatch.setattr(refine, "refine", broken)
    with pytest.raises(WrongError, match=r"halos by host: .* differ by"):
        run(halos=[HaloTransport.HOST])


def dies_in_a_sweep(worker: Worker, settings: refining.Settings, part: int, *rest: Any) -> Any:
    if part == 1:
        worker.start()
        os.kill(os.getpid(), signal.SIGKILL)
    return solve(worker, settings, part, *rest)


solve = refining._solve


@pytest.mark.parametrize("way", [HaloTransport.HOST, HaloTransport.MANAGER])
def test_the_death_of_one_worker_is_told_though_its_neighbours_wait_for_it(
    way: HaloTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refining, "_solve", dies_in_a_sweep)
    settings = refining.Settings(PoissonProblem(10), 3, way, "numpy", 0.0, 10_000, 10_000)
    with pytest.raises(WorkerError, match=r"slab 1 \(pid \d+\) was ended by SIGKILL"):
        refining.refine(settings, Stop())


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


@pytest.mark.parametrize("way", [HaloTransport.HOST, HaloTransport.MANAGER])
def test_each_part_gets_its_neighbours_edges_of_that_turn_and_none_at_the_grids_edge(way: HaloTransport) -> None:
    slabs: list[Any] = [OneEdge(1, 2), OneEdge(3, 4), OneEdge(5, 6)]
    if way is HaloTransport.HOST:
        room = HostHalos.room(parts=3, columns=1)
        exchanges: list[Any] = [HostHalos(slab, part, 3, room) for part, slab in enumerate(slabs)]
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


def test_ipc_with_a_process_of_another_pid_namespace_is_refused_before_it_is_tried() -> None:
    slab: Any = OneEdge(1, 2)
    with pytest.raises(UnsupportedError, match=r"only within one PID namespace.*pid:\[1\] is not pid:\["):
        halos.connect(slab, ("pid:[1]", b"handle"), None)
    assert slab.halos == (None, None)


def test_ipc_that_cuda_refuses_with_201_is_told_as_the_limit_that_it_is() -> None:
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


def test_neighbours_meet_turn_by_turn() -> None:
    here, there = get_context("spawn").Pipe()
    worker: Any = argparse.Namespace(stop=Stop())
    neighbours = refining.Neighbours(worker, (None, here))
    there.send_bytes(b"")
    neighbours.meet()
    assert there.recv_bytes() == b""
    assert not here.poll()
