"""refine: every way of exchanging halos reaches the values of one process; what cannot work is refused."""

import argparse
import json
from io import StringIO
from typing import Any

import pytest

from gpushare_workload.backend.interface import UnsupportedError
from gpushare_workload.events import JsonLines, WrongError
from gpushare_workload.processes.stopping import Stop
from gpushare_workload.processes.worker import Worker
from gpushare_workload.scenarios.cooperation import refine
from gpushare_workload.solver import jacobi
from gpushare_workload.solver.halos import HaloTransport, HostHalos
from gpushare_workload.solver.poisson_problem import PoissonProblem

pytestmark = pytest.mark.usefixtures("nothing_left_behind")
OPTIONS: dict[str, Any] = {
    "backend": "numpy",
    "size": 10,
    "processes": 2,
    "halos": None,
    "tolerance": 1e-4,
    "sweeps": 1000,
    "look_every": 20,
    "repeats": 1,
}


def run(solve: Any = jacobi.refine, **options: Any) -> list[dict[str, Any]]:
    out = StringIO()
    refine.run(argparse.Namespace(**OPTIONS | options), JsonLines("refine", out), Stop(), solve)
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_both_ways_through_the_host_agree_and_ipc_needs_a_gpu() -> None:
    ipc, single, manager, host = run(processes=3)
    assert single["sweeps"] == manager["sweeps"] == host["sweeps"] > 100
    assert manager["difference_from_one_process"] == host["difference_from_one_process"] == 0
    assert single["error_from_exact"] < PoissonProblem(10).error_bound(single["last_change"])
    assert (single["backend"], single["timed"]) == ("numpy", False)
    assert (ipc["event"], ipc["halos"]) == ("left-out", "ipc")


def test_a_single_inner_point_and_a_process_for_each_row_work() -> None:
    assert run(size=1, processes=1, halos=[HaloTransport.HOST])[-1]["difference_from_one_process"] == 0
    assert run(size=3, processes=3, halos=[HaloTransport.HOST])[-1]["difference_from_one_process"] == 0


def test_ipc_without_a_gpu_is_refused_with_an_alternative() -> None:
    with pytest.raises(UnsupportedError, match="CUDA IPC needs a GPU and CuPy: exchange halos through host memory"):
        run(halos=[HaloTransport.IPC])


def test_too_few_sweeps_are_an_error() -> None:
    with pytest.raises(WrongError, match="after 5 sweeps values still change"):
        run(sweeps=5)


def test_with_tolerance_zero_all_sweeps_are_done() -> None:
    assert [line["sweeps"] for line in run(sweeps=7, tolerance=0.0, halos=[HaloTransport.HOST])] == [7, 7]


def test_the_gain_over_one_process_is_taken_in_each_repeat() -> None:
    seconds = iter([4.0, 2.0, 6.0, 1.0])

    def solve(settings: jacobi.JacobiSettings, stop: Stop) -> jacobi.JacobiResult:
        values = settings.problem.exact()
        return jacobi.JacobiResult(values, 7, 0.0, next(seconds), {"backend": "fake", "timed": True}, None)

    single, host = run(solve, repeats=2, tolerance=0.0, halos=[HaloTransport.HOST])
    assert (host["times_as_fast_least"], host["times_as_fast_largest"], host["repeats"]) == (2.0, 6.0, 2)
    assert single["times_as_fast"] == 1.0


class LosesHalos(HostHalos):
    def fetch(self, turn: int) -> None: ...


def loses_halos(
    worker: Worker, settings: jacobi.JacobiSettings, part: int, storage: Any, links: Any, answer: Any
) -> Any:
    def open_halos(worker: Worker, settings: jacobi.JacobiSettings, part: int, slab: Any, storage: Any) -> LosesHalos:
        return LosesHalos(slab, part, settings.parts, storage)

    return jacobi.solve_slab(worker, settings, part, storage, links, answer, open_halos)


def test_a_way_that_loses_the_halos_is_found() -> None:
    def solve(settings: jacobi.JacobiSettings, stop: Stop) -> jacobi.JacobiResult:
        return jacobi.refine(settings, stop, loses_halos if settings.parts > 1 else None)

    with pytest.raises(WrongError, match=r"halos by host: .* differ by"):
        run(solve, halos=[HaloTransport.HOST])
