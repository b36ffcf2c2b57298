"""overlap: what processes record, alone and at once."""

from pathlib import Path
from typing import Any

import pytest

from gpushare_workload.processes.stopping import Stop, StoppedError
from gpushare_workload.scenarios.sharing import overlap
from gpushare_workload.scenarios.sharing.concurrency import Concurrency
from tests.unit.workload.scenarios.sharing.running import runner

pytestmark = pytest.mark.usefixtures("nothing_left_behind")
TINY: dict[str, Any] = {"duration": 0.3, "repeats": 2, "iterations": 1}


@pytest.fixture(autouse=True)
def no_daemon(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))


run = runner(overlap, TINY)


def test_one_process_and_all_at_once_are_measured() -> None:
    lines = run(depth=2, records=5000)
    alone, both = (line for line in lines if line["event"] == "measured")
    assert [(line["processes"], line["repeats"], line["depth"]) for line in (alone, both)] == [(1, 2, 2), (2, 2, 2)]
    assert (alone["at_once"], alone["at_once_most"]) == (1.0, 1)
    assert 1.0 <= both["at_once_least"] <= both["at_once"] <= both["at_once_largest"] <= 2.0
    assert all(
        0 < line["any_running_percent_least"] <= line["any_running_percent_largest"] <= 100 for line in (alone, both)
    )
    (timeline,) = (line for line in lines if line["event"] == "timeline")
    assert all(start < end for _, start, end in timeline["microseconds"])


def test_what_is_told_of_several_runs_is_the_median() -> None:
    told = overlap.concurrency_of([Concurrency(1.5, 2, 0.42), Concurrency(1.7, 3, 0.5), Concurrency(1.6, 2, 0.44)])
    assert (told["at_once"], told["at_once_most"]) == (1.6, 3)
    assert [told[f"any_running_percent{end}"] for end in ("", "_least", "_largest")] == [44.0, 42.0, 50.0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"processes": 49}, "--processes 49: must be at most 48"),
        ({"records": 1 << 30}, "--records 1073741824: must be at most 100000"),
        ({"depth": 0}, "--depth 0: must be at least 1"),
        ({"threads": [25.0]}, "--threads 25: no MPS daemon is in reach"),
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
