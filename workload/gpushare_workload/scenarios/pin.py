"""pin: why is there only one process per GPU?

Commonly claimed: a GPU takes one process, so a node with 8 GPUs runs 8. One process per GPU is a convention of training
frameworks, and choosing the GPU is a matter of CUDA_VISIBLE_DEVICES *before CUDA starts*: set afterwards it does
nothing, which is how several processes end up on GPU 0 by accident. On purpose they may: a GPU takes as many as its
memory and compute mode allow, and 48 clients under MPS (60 from driver 590).

Measured: first one process for each visible GPU, pinned to it, then `--processes` on the first GPU. Each says which GPU
CUDA gave it, and computes a result that is checked; NVML's process list shows who is where (in a container without the
host's PID namespace it names PIDs that mean nothing there, and the report says so). On two H200s: one process on each,
and four on the first, as NVML lists them.
"""

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpushare_workload import inventory
from gpushare_workload.backend import GpuError
from gpushare_workload.bounds import at_least
from gpushare_workload.progress import progress
from gpushare_workload.report import Report, WrongError
from gpushare_workload.stopping import Stop
from gpushare_workload.worker import Worker
from gpushare_workload.workers import Team

NAME = "pin"
NO_DEVICE = 100
WAIT_SECONDS = 60.0
VARIABLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True)
class Seen:
    """What one process saw of its GPU."""

    pid: int
    uuid: str
    backend: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--processes", type=int, default=4, help="processes on the first GPU")
    parser.add_argument("--elements", type=int, default=10_000, help="doubles in the vector that each one sums")


def run(arguments: argparse.Namespace, report: Report, stop: Stop) -> None:
    at_least(arguments, processes=1, elements=1)
    uuids = inventory.visible()
    if not uuids:
        raise GpuError(NO_DEVICE, f"no GPU is visible with {VARIABLE}={os.environ.get(VARIABLE)!r}")
    with progress(2, NAME) as advance:
        for what, places in (("one per GPU", uuids), ("one GPU", [uuids[0]] * arguments.processes)):
            _place(what, places, arguments, report, stop)
            advance(1)


def _place(what: str, places: Sequence[str], arguments: argparse.Namespace, report: Report, stop: Stop) -> None:
    with Team(stop) as team:
        for uuid in places:
            team.start(occupy, arguments.backend, arguments.seed, arguments.elements, environment={VARIABLE: uuid})
        team.go()
        told = dict(team.receive(WAIT_SECONDS) for _ in places)
        seen: list[Seen] = [told[index] for index in range(len(places))]
        # All of them are on their GPUs now, and stay until they are told to go.
        listed = {uuid: inventory.processes(uuid) for uuid in set(places)}
        for index in range(len(places)):
            team.send(index, None)
        team.results(WAIT_SECONDS)
    for uuid, process in zip(places, seen, strict=True):
        pids = listed[uuid]
        report.emit(
            "placed",
            what=what,
            backend=process.backend,
            pid=process.pid,
            pinned_to=uuid,
            uuid=process.uuid,
            listed_by_nvml=None if pids is None else process.pid in pids,
            processes_on_gpu=None if pids is None else len(pids),
        )
    if problems := misplaced(places, seen, listed):
        raise WrongError("; ".join(problems))


def occupy(worker: Worker, choice: str, seed: int, elements: int) -> None:
    """A process on its GPU, until it is sent something. Raises WrongError for a wrong result."""
    vector = np.random.default_rng(seed + worker.index).random(elements)
    with worker.gpu(choice) as backend:
        got, expected = backend.sum_of_squares(vector), float(vector @ vector)
        if not np.isclose(got, expected, rtol=1e-9):
            raise WrongError(f"the sum of squares is {got!r}, expected {expected!r}")
        worker.start()
        worker.send(Seen(os.getpid(), backend.device().uuid, backend.name))
        worker.receive()


def misplaced(places: Sequence[str], seen: Sequence[Seen], listed: dict[str, set[int] | None]) -> list[str]:
    """One sentence for each process that is not where it was pinned. `listed`: PIDs by GPU, None where unknown."""
    problems = []
    for uuid, process in zip(places, seen, strict=True):
        if process.uuid != uuid:
            problems.append(f"process {process.pid} was pinned to {uuid} and CUDA gave it {process.uuid}")
        elsewhere = [other for other, pids in listed.items() if other != uuid and process.pid in (pids or ())]
        problems += [f"process {process.pid} was pinned to {uuid} and NVML lists it on {other}" for other in elsewhere]
    return problems
