"""Streams, graphs and mixtures without any GPU: results, edge sizes, bad arguments, wrong results found."""

import argparse
import itertools
import json
from io import StringIO
from typing import Any

import numpy as np
import pytest

from gpushare_workload.gpus import inventory
from gpushare_workload.backend.on_numpy import backend
from gpushare_workload.backend.on_numpy.tasks import NumpyTask
from gpushare_workload.backend.interface import Span
from gpushare_workload.backend.work import LoadKind
from gpushare_workload.events import EventWriter, WrongError
from gpushare_workload.scenarios import SCENARIOS
from gpushare_workload.scenarios.sharing import graph
from gpushare_workload.scenarios.sharing import mix
from gpushare_workload.scenarios.sharing import pin
from gpushare_workload.scenarios.sharing import streams
from gpushare_workload.scenarios.sharing.pin import PlacedProcess, misplaced
from gpushare_workload.scenarios.sharing.streams import most_at_once, whole
from gpushare_workload.processes.stopping import Stop, StoppedError

TINY: dict[Any, dict[str, Any]] = {
    streams: {"kernels": 3, "streams": 2, "chunks": 3, "chunk_elements": 5, "chunk_iterations": 300, "repeats": 2},
    graph: {"kernels": 3, "elements": 5, "passes": 2, "repeats": 2},
    mix: {"grid": "small", "duration": 0.3, "repeats": 1},
}


def run(scenario: Any, stop: Stop | None = None, **options: Any) -> list[dict[str, Any]]:
    parser, out = argparse.ArgumentParser(), StringIO()
    scenario.add_arguments(parser)
    given = vars(parser.parse_args([])) | TINY[scenario] | options
    scenario.run(argparse.Namespace(backend="numpy", seed=1, **given), EventWriter(scenario.NAME, out), stop or Stop())
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_streams_are_compared_for_kernels_and_for_copies_pinned_and_not() -> None:
    lines = run(streams)
    assert [(it["what"], it["streams"], it.get("pinned")) for it in lines] == [
        ("kernels", 1, None),
        ("kernels", 2, None),
        ("copies and kernels", 1, True),
        ("copies and kernels", 2, True),
        ("copies and kernels", 2, False),
    ]
    assert {it["timed"] for it in lines} == {False}


@pytest.mark.parametrize(
    "options",
    [{"kernels": 0, "chunks": 0}, {"kernels": 1, "streams": 5}, {"chunks": 1, "chunk_elements": 1}],
    ids=["nothing", "more-streams-than-kernels", "one-value"],
)
def test_streams_take_edge_sizes(options: dict[str, Any]) -> None:
    assert all(it["event"] == "measured" for it in run(streams, **options))


def test_a_wrong_kernel_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NumpyTask, "wrong", lambda _: "1 of 2 values are wrong")
    with pytest.raises(WrongError, match="kernel 0: 1 of 2 values are wrong"):
        run(streams)


def test_a_wrong_chunk_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_numpy.NumpyBackend, "process_chunks", lambda _, chunks, *more: (np.zeros_like(chunks), 1.0))
    with pytest.raises(WrongError, match=r"chunks on 1 streams: \d+ values are wrong"):
        run(streams)


@pytest.mark.parametrize(
    ("spans", "at_once", "milliseconds"),
    [
        ([], 0, 0),
        ([Span(2, 3)], 1, 1),
        ([Span(0, 1), Span(1, 2)], 1, 2),
        ([Span(0, 4), Span(1, 2), Span(3, 5)], 2, 5),
        ([Span(0, 9), Span(1, 9), Span(2, 9)], 3, 9),
    ],
    ids=["none", "one", "end-to-end", "two", "three"],
)
def test_what_overlaps_is_counted_from_the_spans(spans: list[Span], at_once: int, milliseconds: float) -> None:
    assert (most_at_once(spans), whole(spans)) == (at_once, milliseconds)


@pytest.mark.parametrize("processes", [1, 2])
def test_graphs_are_compared_with_launches_in_every_process(processes: int) -> None:
    lines = run(graph, processes=processes)
    assert [(it["mode"], it["processes"]) for it in lines] == [("launches", processes), ("graph", processes)]
    assert lines[0]["times_as_fast"] == 1.0


def test_a_mixture_tells_each_program_alone_and_beside_every_other() -> None:
    lines = [it for it in run(mix) if it["event"] == "measured"]
    kinds = [it.value for it in LoadKind]
    pairs = [(it["kind"], it["beside"]) for it in lines]
    assert sorted(pairs, key=str) == sorted(
        [(kind, None) for kind in kinds] + list(itertools.product(kinds, kinds)) + [(kind, kind) for kind in kinds],
        key=str,
    )
    assert all(it["slowdown"] == 1.0 for it in lines if it["beside"] is None)


@pytest.mark.parametrize(
    ("alone", "beside", "times"), [([10.0], [5.0], 2.0), ([10.0, 30.0, 20.0], [20.0, 1.0, 99.0], 1.0)]
)
def test_a_slowdown_is_the_ratio_of_the_median_rates(alone: list[float], beside: list[float], times: float) -> None:
    assert mix.slowdown(alone, beside) == times


def test_a_program_that_got_nothing_done_is_no_slowdown() -> None:
    with pytest.raises(WrongError, match="longer --duration"):
        mix.slowdown([10.0], [0.0])


@pytest.mark.parametrize(
    ("scenario", "options", "words"),
    [
        (streams, {"streams": 0}, "--streams 0: must be at least 1"),
        (streams, {"chunk_elements": 0}, "--chunk-elements 0: must be at least 1"),
        (streams, {"chunk_iterations": 1 << 24}, "--chunk-iterations 16777216: must be at most"),
        (graph, {"processes": 0}, "--processes 0: must be at least 1"),
        (graph, {"kernels": 1 << 20, "passes": 100}, "--kernels 1048576 × --passes 100"),
        (mix, {"duration": 0.0}, "--duration 0.0: must be at least 0.01"),
        (mix, {"duration": float("nan")}, "--duration nan: must be at least"),
        (mix, {"duration": float("inf")}, "--duration inf: must be finite"),
        (mix, {"elements": 0}, "--elements 0: must be at least 1"),
    ],
)
def test_a_bad_argument_names_itself_and_its_value(scenario: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        run(scenario, **options)


@pytest.mark.parametrize("scenario", list(TINY))
def test_a_program_that_was_asked_to_end_does(scenario: Any) -> None:
    stop = Stop()
    stop.ask()
    with pytest.raises(StoppedError):
        run(scenario, stop)


@pytest.mark.parametrize(
    ("chosen", "found"),
    [
        ("0,2", ["GPU-a1", "GPU-b2"]),
        ("GPU-b1", ["GPU-b1"]),
        ("1,9,0", ["GPU-b1"]),
        ("", []),
        ("GPU-b", []),
        (" 1 , 0", ["GPU-b1", "GPU-a1"]),
    ],
    ids=["indexes", "uuid", "up-to-the-first-wrong-one", "none", "ambiguous", "spaces"],
)
def test_visible_gpus_are_read_as_cuda_reads_them(chosen: str, found: list[str]) -> None:
    assert inventory.select(chosen, ["GPU-a1", "GPU-b1", "GPU-b2"]) == found


def test_a_machine_without_gpus_has_nothing_to_pin_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pin.inventory, "visible", list)
    with pytest.raises(Exception, match="no GPU is visible"):
        pin.run(argparse.Namespace(backend="numpy", seed=1, processes=1, elements=1), EventWriter("pin", StringIO()), Stop())


@pytest.mark.parametrize(
    ("uuid", "listed", "words"),
    [
        ("GPU-a", {"GPU-a": {7}}, None),
        ("GPU-a", {"GPU-a": None}, None),
        ("GPU-a", {"GPU-a": set()}, None),
        ("GPU-b", {"GPU-a": {7}}, "CUDA gave it GPU-b"),
        ("GPU-a", {"GPU-a": set(), "GPU-b": {7}}, "NVML lists it on GPU-b"),
    ],
    ids=["there", "nvml-silent", "pids-of-another-namespace", "cuda-elsewhere", "nvml-elsewhere"],
)
def test_a_process_on_another_gpu_than_its_own_is_named(uuid: str, listed: Any, words: str | None) -> None:
    problems = misplaced(["GPU-a"], [PlacedProcess(7, uuid, "numpy")], listed)
    assert (not problems) if words is None else (words in problems[0])


def test_every_scenario_states_its_question() -> None:
    for name, module in SCENARIOS.items():
        first = (module.__doc__ or "").splitlines()[0]
        assert first.startswith(f"{name}: "), first
        assert first.endswith("?"), first
