"""streams: kernels and copies on one stream and on several; wrong results are found, spans are counted."""

from typing import Any

import numpy as np
import pytest

from gpushare_workload.backend.interface import Span
from gpushare_workload.backend.on_numpy.backend import NumpyBackend
from gpushare_workload.backend.on_numpy.tasks import NumpyTask
from gpushare_workload.backend.work import Floats, Work
from gpushare_workload.events import WrongError
from gpushare_workload.processes.stopping import Stop, StoppedError
from gpushare_workload.scenarios.sharing import streams
from gpushare_workload.scenarios.sharing.streams import extent_ms
from tests.unit.workload.scenarios.sharing.running import runner

TINY: dict[str, Any] = {
    "kernels": 3,
    "streams": 2,
    "chunks": 3,
    "chunk_elements": 5,
    "chunk_iterations": 300,
    "repeats": 2,
}


run = runner(streams, TINY)


def test_streams_are_compared_for_kernels_and_for_copies_pinned_and_not() -> None:
    lines = run()
    assert [(line["what"], line["streams"], line.get("pinned")) for line in lines] == [
        ("kernels", 1, None),
        ("kernels", 2, None),
        ("copies and kernels", 1, True),
        ("copies and kernels", 2, True),
        ("copies and kernels", 2, False),
    ]
    assert {(line["timed"], line["times_as_fast"]) for line in lines} == {(False, None)}


@pytest.mark.parametrize(
    "options",
    [{"kernels": 0, "chunks": 0}, {"kernels": 1, "streams": 5}, {"chunks": 1, "chunk_elements": 1}],
    ids=["nothing", "more-streams-than-kernels", "one-value"],
)
def test_streams_take_edge_sizes(options: dict[str, Any]) -> None:
    assert all(line["event"] == "measured" for line in run(**options))


class WrongTask(NumpyTask):
    def wrong(self, launches: int) -> str | None:
        return "1 of 2 values are wrong"


class WrongKernels(NumpyBackend):
    def prepare(self, work: Work) -> NumpyTask:
        return WrongTask(work, lambda _: None, lambda: None, 0.0)


class WrongChunks(NumpyBackend):
    def process_chunks(self, chunks: Floats, iterations: int, lanes: int, pinned: bool) -> tuple[Floats, float]:
        return np.zeros_like(chunks), 1.0


def test_a_wrong_kernel_is_found() -> None:
    with pytest.raises(WrongError, match="kernel 0: 1 of 2 values are wrong"):
        run(None, lambda _: WrongKernels())


def test_a_wrong_chunk_is_found() -> None:
    with pytest.raises(WrongError, match=r"chunks on 1 streams: \d+ values are wrong"):
        run(None, lambda _: WrongChunks())


class TimedChunks(NumpyBackend):
    """Two runs on one stream, and two on two from pinned and from pageable memory."""

    timed = True

    def __init__(self) -> None:
        super().__init__()
        self.left = [8.0, 12.0, 2.0, 6.0, 0.0, 0.0]

    def process_chunks(self, chunks: Floats, iterations: int, lanes: int, pinned: bool) -> tuple[Floats, float]:
        return super().process_chunks(chunks, iterations, lanes, pinned)[0], self.left.pop(0)


def test_figures_are_medians_with_extremes_and_ratios_of_the_same_run() -> None:
    names = (
        "wall_ms",
        "wall_ms_least",
        "wall_ms_largest",
        "times_as_fast",
        "times_as_fast_least",
        "times_as_fast_largest",
    )
    copies = [line for line in run(None, lambda _: TimedChunks(), kernels=0) if line["what"] == "copies and kernels"]
    assert [tuple(line.get(name) for name in names) for line in copies] == [
        (10.0, 8.0, 12.0, 1.0, 1.0, 1.0),
        (4.0, 2.0, 6.0, 3.0, 2.0, 4.0),
        (0.0, 0.0, 0.0, None, None, None),
    ]


@pytest.mark.parametrize(
    ("spans", "milliseconds"),
    [([], 0), ([Span(2, 3)], 1), ([Span(0, 1), Span(1, 2)], 2), ([Span(0, 4), Span(1, 2), Span(3, 5)], 5)],
    ids=["none", "one", "end-to-end", "overlapping"],
)
def test_the_extent_is_from_the_first_start_to_the_last_end(spans: list[Span], milliseconds: float) -> None:
    assert extent_ms(spans) == milliseconds


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"streams": 0}, "--streams 0: must be at least 1"),
        ({"chunk_elements": 0}, "--chunk-elements 0: must be at least 1"),
        ({"chunk_iterations": 1 << 24}, "--chunk-iterations 16777216: must be at most"),
    ],
)
def test_a_bad_argument_names_itself_and_its_value(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        run(**options)


def test_a_program_that_is_asked_to_end_ends() -> None:
    stop = Stop()
    stop.ask()
    with pytest.raises(StoppedError):
        run(stop)
