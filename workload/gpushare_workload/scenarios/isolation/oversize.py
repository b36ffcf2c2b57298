"""oversize: what if my data is larger than the memory that I was granted?

Commonly claimed: the data must fit, or the GPU is too small; or: the driver swaps. Device memory does not swap: an
allocation above the grant fails with error 2, and the program goes on. Data of any size passes through a few buffers,
chunk by chunk, and copies overlap with kernels if the host's memory is page-locked. Managed memory may be larger than
the GPU's memory; its pages then move at each pass.

Measured, for data of `--times` the memory that is free to this process: whether one allocation of it is refused; the
GiB per second that pass through chunks, in one stream from pageable memory and in several from page-locked memory;
and those of passes over managed memory, or the error with which it is refused. All results are checked.
"""

import argparse
from collections.abc import Callable
from contextlib import closing
from typing import Any

import numpy as np

from gpushare_workload.backend import Backend, GpuError, open_backend
from gpushare_workload.backend.interface import UnsupportedError, identity
from gpushare_workload.backend.work import Floats
from gpushare_workload.events import JsonLines, WrongError
from gpushare_workload.gpus.grant import MIB, ContainerGrant
from gpushare_workload.processes.stopping import Stop
from gpushare_workload.scenarios.options import check_bounds
from gpushare_workload.scenarios.progress import progress
from gpushare_workload.scenarios.repeats import summarised

NAME = "oversize"
GIB = 1 << 30
WAYS = ("whole", "pageable", "overlapped", "managed")
PASSES = 3
"""Over managed memory; the first one moves the pages to the GPU and does not count."""
LANES = 4
PERIOD = 1024


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--times", type=float, default=1.5, help="size of the data, as a multiple of the free memory (default: 1.5)"
    )
    parser.add_argument("--size", type=int, metavar="MIB", help="size of the data, in the place of --times")
    parser.add_argument("--chunk", type=int, default=16, metavar="MIB", help="size of a chunk (default: %(default)s)")
    parser.add_argument(
        "--chunks", type=int, default=16, help="chunks in host memory, which are sent over and over (default: 16)"
    )
    parser.add_argument("--iterations", type=int, default=64, help="additions to each float of a chunk (default: 64)")
    parser.add_argument("--repeats", type=int, default=3, help="the figures are medians of this many runs")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS[:3]), help="default: all but `managed`")


def run(
    arguments: argparse.Namespace,
    events: JsonLines,
    stop: Stop,
    open_backend: Callable[[str], Backend] = open_backend,
) -> None:
    check_bounds(arguments, times=0.001, chunk=1, chunks=1, iterations=1, repeats=1)
    if arguments.size is not None:
        check_bounds(arguments, size=1)
    with closing(open_backend(arguments.backend)) as backend:
        free = backend.device().free
        size = int(free * arguments.times) // MIB * MIB if arguments.size is None else arguments.size * MIB
        grant = ContainerGrant.from_environment().process_memory
        common = {
            **identity(backend),
            "data_mib": size // MIB,
            "free_mib": free // MIB,
            "granted_mib": grant and grant // MIB,
        }
        if "whole" in arguments.ways:
            refused = not backend.try_allocate(size)
            events.emit("measured", way="whole", **common, refused=refused)
            if not refused and size > free and (backend.timed or backend.simulated):
                raise WrongError(f"{size} bytes were allocated at once, only {free} were free")
        rows = np.arange(arguments.chunks * arguments.chunk * MIB // 4, dtype=np.uint32) % PERIOD
        data: Floats = rows.astype(np.float32).reshape(arguments.chunks, -1)
        by_way: dict[str, list[dict[str, Any]]] = {way: [] for way in arguments.ways if way != "whole"}
        with progress(len(by_way) * arguments.repeats, NAME) as advance:
            for _ in range(arguments.repeats):
                for way in list(by_way):
                    stop.check()
                    try:
                        by_way[way].append({"gib_per_second": _pass(backend, way, data, size, arguments, stop)})
                    except UnsupportedError as error:
                        events.emit("left-out", way=way, reason=str(error))
                        del by_way[way]
                    except GpuError as error:
                        if way != "managed":
                            raise
                        events.emit("measured", way=way, **common, refused=True, code=error.code)
                        del by_way[way]
                    advance(1)
        for way, runs in by_way.items():
            events.emit("measured", way=way, **common, refused=False, **summarised(runs))


def _pass(backend: Backend, way: str, data: Floats, size: int, arguments: argparse.Namespace, stop: Stop) -> float:
    """GiB per second. Raises WrongError for a wrong result."""
    if way == "managed":
        milliseconds = backend.managed_passes(size, PASSES)
        return size * (PASSES - 1) / GIB / max(milliseconds, 1e-6) * 1000
    overlapped = way == "overlapped"
    spent, passed = 0.0, 0
    while passed < size:
        stop.check()
        result, milliseconds = backend.process_chunks(
            data, arguments.iterations, LANES if overlapped else 1, pinned=overlapped
        )
        if not np.array_equal(result, data + np.float32(arguments.iterations)):
            raise WrongError(f"{way}: a chunk differs from what was sent, plus {arguments.iterations}")
        spent, passed = spent + milliseconds, passed + data.nbytes
    return passed / GIB / max(spent, 1e-6) * 1000
