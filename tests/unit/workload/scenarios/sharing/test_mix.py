"""mix: each program alone and beside every other, and the slowdown from their rates."""

import itertools
import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from gpushare_workload.backend.work import LoadKind, Peaks, Work
from gpushare_workload.events import JsonLines, WrongError
from gpushare_workload.processes.stopping import Stop, StoppedError
from gpushare_workload.scenarios.sharing import mix
from tests.unit.workload.scenarios.sharing.running import runner

TINY: dict[str, Any] = {"grid": "small", "duration": 0.3, "repeats": 1}


@pytest.fixture(autouse=True)
def no_daemon(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))


run = runner(mix, TINY)


def test_a_mixture_measures_each_program_alone_and_beside_every_other() -> None:
    lines = [line for line in run() if line["event"] == "measured"]
    kinds = [line.value for line in LoadKind]
    pairs = [(line["kind"], line["beside"]) for line in lines]
    assert sorted(pairs, key=str) == sorted(
        [(kind, None) for kind in kinds] + list(itertools.product(kinds, kinds)) + [(kind, kind) for kind in kinds],
        key=str,
    )
    assert {line["slowdown"] for line in lines} == {None}, "NumPy's rates are no GPU's"


def test_each_pair_has_a_line_and_no_verdict_without_a_gpu() -> None:
    lines = [line for line in run(repeats=2) if line["event"] == "pair"]
    assert [tuple(line["kinds"]) for line in lines] == list(itertools.combinations_with_replacement(LoadKind, 2))
    assert {(line["timed"], line["combined"], line["verdict"]) for line in lines} == {(False, None, None)}
    assert {(line["sharing"], line["threads_percent"], line["repeats"]) for line in lines} == {
        ("time-slicing", 100.0, 2)
    }


def test_rates_of_a_gpu_give_slowdowns_and_a_verdict() -> None:
    rates = {(100.0, entry): [(50.0,) * len(entry)] for entry in mix.PLAN}
    works = {kind: Work(kind, 8) for kind in LoadKind}
    measured = mix.Measured(mix.ProgramInfo("cupy", True, Peaks(), works), rates, {key: [None] for key in rates})
    out = StringIO()
    mix.emit_all(measured, [100.0], "mps", JsonLines("mix", out))
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert {line["slowdown"] for line in lines if line["event"] == "measured"} == {1.0}
    assert {(line["combined"], line["verdict"]) for line in lines if line["event"] == "pair"} == {
        (2.0, "complementary")
    }


@pytest.mark.parametrize(
    ("rates", "alone", "whole"),
    [((50.0, 5.0), (100.0, 10.0), 1.0), ((100.0, 10.0), (100.0, 10.0), 2.0), ((25.0, 2.5), (100.0, 10.0), 0.5)],
)
def test_combined_throughput_is_in_parts_of_what_each_gets_alone(rates: Any, alone: Any, whole: float) -> None:
    assert mix.combined(rates, alone) == whole


@pytest.mark.parametrize(
    ("combined", "words"),
    [
        ([1.5, 1.9, 2.0], "complementary"),
        ([1.49, 1.9, 2.0], "partly"),
        ([0.9, 1.0, 1.1], "alike"),
        ([0.9, 1.0, 1.11], "partly"),
    ],
)
def test_a_verdict_needs_every_repeat(combined: list[float], words: str) -> None:
    assert mix.verdict(combined) == words


@pytest.mark.parametrize(
    ("alone", "beside", "times"), [([10.0], [5.0], 2.0), ([10.0, 30.0, 20.0], [20.0, 1.0, 99.0], 1.0)]
)
def test_a_slowdown_is_the_ratio_of_the_median_rates(alone: list[float], beside: list[float], times: float) -> None:
    assert mix.slowdown(alone, beside) == times


def test_a_program_that_got_nothing_done_is_no_slowdown() -> None:
    with pytest.raises(WrongError, match="longer --duration"):
        mix.slowdown([10.0], [0.0])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"duration": 0.0}, "--duration 0.0: must be at least 0.01"),
        ({"duration": float("nan")}, "--duration nan: must be at least"),
        ({"duration": float("inf")}, "--duration inf: must be finite"),
        ({"elements": 0}, "--elements 0: must be at least 1"),
        ({"threads": [50.0]}, "--threads 50: no MPS daemon is in reach"),
        ({"threads": [0.0]}, "--threads 0: a percentage above 0, up to 100"),
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
