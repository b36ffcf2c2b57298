"""pin: why is there only one process per GPU?

Commonly claimed: a GPU takes one process, so a node with 8 GPUs runs 8. One process per GPU is a convention of training
frameworks. CUDA_VISIBLE_DEVICES chooses the GPU, but only if it is set *before CUDA starts*: set later it has no
effect, and several processes end up on GPU 0 by accident. They may share it on purpose: a GPU takes as many processes
as its memory and compute mode allow, and under MPS so many clients (docs/mps.md).

Measured: first one process for each visible GPU, pinned to it, then `--processes` on the first GPU; then one that sets
the variable to another value, or to no GPU at all, after CUDA has started: it stays where it was. Each process reports
which GPU CUDA gave it, and computes a result that is checked. NVML's process list shows where each process is; in a
container without the host's PID namespace its PIDs mean nothing, and `listed_by_nvml` is then false. Under MPS NVML
lists the server, too, so one process more than there are clients.
"""

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpushare_workload.backend import GpuError
from gpushare_workload.events import JsonLines, WrongError
from gpushare_workload.gpus import inventory
from gpushare_workload.processes.stopping import Stop
from gpushare_workload.processes.team import Team
from gpushare_workload.processes.worker import Worker
from gpushare_workload.scenarios.options import check_bounds
from gpushare_workload.scenarios.progress import progress

NAME = "pin"
NO_DEVICE = 100
WAIT_SECONDS = 60.0
VARIABLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True)
class PlacedProcess:
    """The GPU that CUDA gave to one process."""

    pid: int
    uuid: str
    backend: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--processes", type=int, default=4, help="processes on the first GPU")
    parser.add_argument("--elements", type=int, default=10_000, help="doubles in the vector that each one sums")


def run(arguments: argparse.Namespace, events: JsonLines, stop: Stop) -> None:
    check_bounds(arguments, processes=1, elements=1)
    uuids = inventory.visible()
    if not uuids:
        raise GpuError(NO_DEVICE, f"no GPU is visible with {VARIABLE}={os.environ.get(VARIABLE)!r}")
    with progress(3, NAME) as advance:
        for what, pinned in (("one per GPU", uuids), ("one GPU", [uuids[0]] * arguments.processes)):
            _place(what, pinned, arguments, events, stop)
            advance(1)
        _set_too_late(uuids, arguments, events, stop)


def _set_too_late(uuids: Sequence[str], arguments: argparse.Namespace, events: JsonLines, stop: Stop) -> None:
    """Raises WrongError if the variable had an effect after all."""
    other = uuids[1] if len(uuids) > 1 else ""
    with Team(stop) as team:
        team.start(choose_late, arguments.backend, other, environment={VARIABLE: uuids[0]})
        team.go()
        [process] = team.results(WAIT_SECONDS)
    events.emit("set-too-late", backend=process.backend, started_with=uuids[0], then_set_to=other, uuid=process.uuid)
    if process.uuid != uuids[0]:
        raise WrongError(
            f"{VARIABLE}={other!r} moved a process from {uuids[0]} to {process.uuid} after CUDA had started"
        )


def choose_late(worker: Worker, choice: str, other: str) -> PlacedProcess:
    """The target of a process that sets the variable when CUDA has already read it."""
    with worker.gpu(choice) as backend:
        os.environ[VARIABLE] = other
        worker.start()
        return PlacedProcess(os.getpid(), backend.device().uuid, backend.name)


def _place(what: str, pinned: Sequence[str], arguments: argparse.Namespace, events: JsonLines, stop: Stop) -> None:
    """Runs a process for each UUID in `pinned`."""
    with Team(stop) as team:
        for uuid in pinned:
            team.start(occupy, arguments.backend, arguments.seed, arguments.elements, environment={VARIABLE: uuid})
        team.go()
        placed: list[PlacedProcess] = team.gather(WAIT_SECONDS)
        # All of them are on their GPUs now, and stay there until they receive a message.
        listed = {uuid: inventory.processes(uuid) for uuid in set(pinned)}
        team.finish(WAIT_SECONDS)
    for uuid, process in zip(pinned, placed, strict=True):
        pids = listed[uuid]
        events.emit(
            "placed",
            what=what,
            backend=process.backend,
            pid=process.pid,
            pinned_to=uuid,
            uuid=process.uuid,
            listed_by_nvml=None if pids is None else process.pid in pids,
            processes_on_gpu=None if pids is None else len(pids),
        )
    if problems := misplaced(pinned, placed, listed):
        raise WrongError("; ".join(problems))


def occupy(worker: Worker, choice: str, seed: int, elements: int) -> None:
    """The target of one process: stays on its GPU until it receives a message. Raises WrongError for a wrong result."""
    vector = np.random.default_rng(seed + worker.index).random(elements)
    with worker.gpu(choice) as backend:
        got, expected = backend.sum_of_squares(vector), float(vector @ vector)
        if not np.isclose(got, expected, rtol=1e-9):
            raise WrongError(f"the sum of squares is {got!r}, expected {expected!r}")
        worker.start()
        worker.send(PlacedProcess(os.getpid(), backend.device().uuid, backend.name))
        worker.receive()


def misplaced(pinned: Sequence[str], placed: Sequence[PlacedProcess], listed: dict[str, set[int] | None]) -> list[str]:
    """One sentence for each process that is not on its GPU. `listed`: PIDs by GPU, None where unknown."""
    problems = []
    for uuid, process in zip(pinned, placed, strict=True):
        if process.uuid != uuid:
            problems.append(f"process {process.pid} was pinned to {uuid} and CUDA gave it {process.uuid}")
        elsewhere = [other for other, pids in listed.items() if other != uuid and process.pid in (pids or ())]
        problems += [f"process {process.pid} was pinned to {uuid} and NVML lists it on {other}" for other in elsewhere]
    return problems
