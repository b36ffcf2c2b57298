"""A Jacobi run over processes: the death of a worker is reported, and neighbours wait for each other."""

import argparse
import os
import signal
from multiprocessing import get_context
from typing import Any

import pytest

from gpushare_workload.processes.outcomes import WorkerError
from gpushare_workload.processes.stopping import Stop
from gpushare_workload.processes.worker import Worker
from gpushare_workload.solver import jacobi
from gpushare_workload.solver.halos import HaloTransport
from gpushare_workload.solver.poisson_problem import PoissonProblem

pytestmark = pytest.mark.usefixtures("nothing_left_behind")


def dies_in_a_sweep(worker: Worker, settings: jacobi.JacobiSettings, part: int, *rest: Any) -> Any:
    if part == 1:
        worker.start()
        os.kill(os.getpid(), signal.SIGKILL)
    return jacobi.solve_slab(worker, settings, part, *rest)


@pytest.mark.parametrize("transport", [HaloTransport.HOST, HaloTransport.MANAGER])
def test_a_workers_death_is_reported_though_its_neighbours_wait_for_it(transport: HaloTransport) -> None:
    settings = jacobi.JacobiSettings(PoissonProblem(10), 3, transport, "numpy", 0.0, 10_000, 10_000)
    with pytest.raises(WorkerError, match=r"slab 1 \(pid \d+\) was ended by SIGKILL"):
        jacobi.refine(settings, Stop(), dies_in_a_sweep)


def test_neighbours_wait_for_each_other_turn_by_turn() -> None:
    here, there = get_context("spawn").Pipe()
    worker: Any = argparse.Namespace(stop=Stop())
    barrier = jacobi.NeighbourBarrier(worker, (None, here))
    there.send_bytes(b"")
    barrier.wait()
    assert there.recv_bytes() == b""
    assert not here.poll()
