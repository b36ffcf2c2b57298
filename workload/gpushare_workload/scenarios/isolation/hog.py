"""hog: what if a neighbour takes more than its share?

Commonly claimed: an MPS memory limit is a hard limit. It binds plain, managed and asynchronous allocations of every
program that does not change its environment. Of MPS v2 docs/mps.md has it measured: a client whose own limit variable
is malformed or names no visible device loses the daemon's limit too and can allocate the whole GPU; a client that only
removes the variable falls back to the daemon's limit. So the limit protects against mistakes; observation must find the
rest.

Measured: an allocation above the grant must be refused. Then the program allocates everything that it was granted, and
holds it. `--endless` also fills this client's SMs with a kernel without an end of its own; SIGTERM ends it in good
order. `--escape` does what a tenant could try before CUDA starts: `unset` removes the limit variable,
`garble` makes it malformed. If an allocation above the grant then succeeds, it is held for `--hold` seconds, so that it
can be observed, and the exit code is 1.
"""

import argparse
import os
import time
from collections.abc import MutableMapping
from contextlib import closing

from gpushare_workload.backend import Backend, OutOfMemoryError, open_backend
from gpushare_workload.backend.work import H200_SMS
from gpushare_workload.events import JsonLines, WrongError
from gpushare_workload.gpus.grant import MIB, ContainerGrant
from gpushare_workload.processes.stopping import Stop
from gpushare_workload.scenarios.options import check_bounds

NAME = "hog"
LIMIT = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
ESCAPES = ("unset", "garble")
BLOCKS_PER_SM = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--above", type=int, default=1024, metavar="MIB", help="how far above the grant to reach")
    parser.add_argument("--step", type=int, default=256, metavar="MIB", help="size of each allocation up to the grant")
    parser.add_argument(
        "--hold", type=float, default=5.0, metavar="SECONDS", help="how long to hold the memory; 0: until SIGTERM"
    )
    parser.add_argument("--endless", action="store_true", help="also fill this client's SMs for that time")
    parser.add_argument("--escape", choices=ESCAPES, help="change the limit variable, as a tenant could")


def run(arguments: argparse.Namespace, events: JsonLines, stop: Stop) -> None:
    check_bounds(arguments, above=1, step=1, hold=0)
    grant = ContainerGrant.from_environment()
    if grant.memory is None:
        raise ValueError("GPUSHARE_MEMORY_BYTES is not set: without a grant nothing is above it; run this in a slot")
    if arguments.escape:
        escape(arguments.escape, os.environ)
    with closing(open_backend(arguments.backend)) as backend:
        above = grant.memory + arguments.above * MIB
        handle = take(backend, above)
        events.emit(
            "reached",
            backend=backend.name,
            escape=arguments.escape,
            granted_bytes=grant.memory,
            asked_bytes=above,
            refused=handle is None,
        )
        if handle is None:
            held = fill(backend, grant.memory, arguments.step * MIB, stop)
            events.emit("filled", held_bytes=held)
        _hold(backend, arguments, events, stop)
    if handle is not None:
        raise WrongError(f"{above} bytes were allocated, only {grant.memory} were granted")


def escape(how: str, environment: MutableMapping[str, str]) -> None:
    """Changes the limit variable. Call it before CUDA starts, which reads its environment once."""
    if how == "unset":
        environment.pop(LIMIT, None)
    else:
        environment[LIMIT] = "0=garbage"


def take(backend: Backend, size: int) -> int | None:
    """Allocates `size` bytes and returns their handle; None if the allocation was refused."""
    try:
        return backend.allocate(size)
    except OutOfMemoryError:
        return None


def fill(backend: Backend, most: int, step: int, stop: Stop) -> int:
    """Allocates in steps until one is refused.

    Returns the bytes, which stay allocated. Raises WrongError above `most`.
    """
    held = 0
    while not stop.asked():
        if take(backend, step) is None:
            return held
        held += step
        if held > most:
            raise WrongError(f"{held} bytes were allocated in steps of {step}, only {most} were granted")
    return held


def _hold(backend: Backend, arguments: argparse.Namespace, events: JsonLines, stop: Stop) -> None:
    end = time.monotonic() + arguments.hold if arguments.hold else float("inf")
    events.emit("holding", endless=arguments.endless)

    def ended(seconds: float) -> bool:
        return stop.wait(min(seconds, end - time.monotonic())) or time.monotonic() >= end

    if arguments.endless:
        backend.run_endless(ended, BLOCKS_PER_SM * (backend.device().sms or H200_SMS))
    else:
        while not ended(1.0):
            backend.synchronize()
    events.emit("finished", stopped=stop.asked())
