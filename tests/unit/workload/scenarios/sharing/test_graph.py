"""graph: launches and graphs in every process."""

import argparse
import json
from io import StringIO
from typing import Any

import pytest

from gpushare_workload.events import JsonLines
from gpushare_workload.processes.stopping import Stop, StoppedError
from gpushare_workload.scenarios.sharing import graph

TINY: dict[str, Any] = {"kernels": 3, "elements": 5, "passes": 2, "repeats": 2}


def run(stop: Stop | None = None, **options: Any) -> list[dict[str, Any]]:
    parser, out = argparse.ArgumentParser(), StringIO()
    graph.add_arguments(parser)
    given = vars(parser.parse_args([])) | TINY | options
    graph.run(argparse.Namespace(backend="numpy", seed=1, **given), JsonLines("graph", out), stop or Stop())
    return [json.loads(line) for line in out.getvalue().splitlines()]


@pytest.mark.parametrize("processes", [1, 2])
def test_graphs_are_compared_with_launches_in_every_process(processes: int) -> None:
    lines = run(processes=processes)
    assert [(it["mode"], it["processes"]) for it in lines] == [("launches", processes), ("graph", processes)]
    assert lines[0]["times_as_fast"] == 1.0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"processes": 0}, "--processes 0: must be at least 1"),
        ({"kernels": 1 << 20, "passes": 100}, "--kernels 1048576 × --passes 100"),
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
