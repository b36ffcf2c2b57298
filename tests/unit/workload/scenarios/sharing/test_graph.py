"""graph: launches and graphs in every process."""

from typing import Any

import pytest

from gpushare_workload.processes.stopping import Stop, StoppedError
from gpushare_workload.scenarios.sharing import graph
from tests.unit.workload.scenarios.sharing.running import runner

TINY: dict[str, Any] = {"kernels": 3, "elements": 5, "passes": 2, "repeats": 2}


run = runner(graph, TINY)


@pytest.mark.parametrize("processes", [1, 2])
def test_graphs_are_compared_with_launches_in_every_process(processes: int) -> None:
    lines = run(processes=processes)
    assert [(line["mode"], line["processes"]) for line in lines] == [("launches", processes), ("graph", processes)]
    assert [line["times_as_fast"] for line in lines] == [None, None], "NumPy's times are no GPU's"
    for line in lines:
        assert line["us_per_kernel_least"] <= line["us_per_kernel"] <= line["us_per_kernel_largest"]


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
