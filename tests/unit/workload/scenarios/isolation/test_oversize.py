"""oversize: what is larger than the memory is refused as a whole and passes in chunks; wrong chunks are found."""

import argparse
import json
from collections.abc import Callable
from io import StringIO
from typing import Any

import numpy as np
import pytest

from gpushare_workload.backend import GpuError
from gpushare_workload.backend.on_numpy.backend import NumpyBackend
from gpushare_workload.backend.work import Floats
from gpushare_workload.events import JsonLines, WrongError
from gpushare_workload.processes.stopping import Stop
from gpushare_workload.scenarios.isolation import oversize

TINY = ("--size", "3", "--chunk", "1", "--chunks", "2", "--repeats", "1")


def run(*options: str, backend: Callable[[], NumpyBackend] = NumpyBackend) -> list[dict[str, Any]]:
    parser, out = argparse.ArgumentParser(), StringIO()
    oversize.add_arguments(parser)
    given = vars(parser.parse_args([*TINY, *options]))
    oversize.run(
        argparse.Namespace(backend="numpy", seed=1, **given), JsonLines("oversize", out), Stop(), lambda _: backend()
    )
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_chunks_pass_until_all_of_the_data_has() -> None:
    sizes = []

    class Counting(NumpyBackend):
        def process_chunks(self, chunks: Floats, iterations: int, lanes: int, pinned: bool) -> tuple[Floats, float]:
            sizes.append((chunks.nbytes, lanes, pinned))
            return super().process_chunks(chunks, iterations, lanes, pinned)

    lines = run("--ways", "pageable", "overlapped", backend=Counting)
    # 3 MiB by 2 MiB at a time.
    assert sizes == [(2 << 20, 1, False)] * 2 + [(2 << 20, oversize.LANES, True)] * 2
    assert [(line["way"], line["data_mib"]) for line in lines] == [("pageable", 3), ("overlapped", 3)]
    assert all(line["gib_per_second"] > 0 for line in lines)


def test_a_chunk_that_comes_back_wrong_is_found() -> None:
    class Forgetful(NumpyBackend):
        def process_chunks(self, chunks: Floats, iterations: int, lanes: int, pinned: bool) -> tuple[Floats, float]:
            return np.zeros_like(chunks), 1.0

    with pytest.raises(WrongError, match="pageable: a chunk differs"):
        run("--ways", "pageable", backend=Forgetful)


def test_managed_memory_without_a_gpu_is_left_out_with_the_reason() -> None:
    [line] = run("--ways", "managed")
    assert (line["event"], line["way"]) == ("left-out", "managed")


def test_managed_memory_that_is_refused_is_a_figure_and_no_failure() -> None:
    class Limited(NumpyBackend):
        def managed_passes(self, size: int, passes: int) -> float:
            raise GpuError(2, "out of memory")

    [line] = run("--ways", "managed", backend=Limited)
    assert (line["refused"], line["code"]) == (True, 2)


def test_the_rate_of_managed_memory_leaves_out_the_first_pass() -> None:
    class Managed(NumpyBackend):
        def managed_passes(self, size: int, passes: int) -> float:
            assert (size, passes) == (3 << 20, 3)
            return 1.0

    [line] = run("--ways", "managed", backend=Managed)
    assert line["gib_per_second"] == round(2 * 3 / 1024 * 1000, 4)


@pytest.mark.usefixtures("driver")
def test_on_a_simulated_gpu_the_whole_is_refused(start_client: Any, daemon: Any) -> None:
    daemon()
    options = ("--times", "1.5", "--ways", "whole")
    program = start_client("oversize", *options, memory_mib=1024)
    assert program.end() == 0
    [line] = program.lines
    assert (line["refused"], line["granted_mib"]) == (True, 1024)
    assert line["data_mib"] > line["free_mib"]
