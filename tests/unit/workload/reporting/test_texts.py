"""Headlines and the environment."""

from pathlib import Path

import pytest

from gpushare_workload.reporting import texts
from gpushare_workload.results.files import read
from gpushare_workload.results.summary import rows
from tests.unit.workload.reporting.inputs import DEEP, SCALING, overlap, written
from tests.unit.workload.results.made_up import document, run


def test_headlines_are_mps_against_time_slices_and_one_client_by_depth() -> None:
    (headline,) = texts.headlines(rows([*SCALING, *DEEP]))
    assert headline == (
        "2.00× → 1.00×",
        "compute, 8 blocks, 2 clients, depth 1 → 64: MPS against time slices; against one client alone 2.00× → 1.00×",
    )
    (headline,) = texts.headlines(rows(SCALING))
    assert headline == (
        "2.00×",
        "compute, 8 blocks, 2 clients, depth 1: MPS against time slices; against one client alone 2.00×",
    )


@pytest.mark.parametrize(
    ("sharing", "running"), [("mps", "96 (95–97) %"), ("time-slicing", "–")], ids=["told", "an earlier version"]
)
def test_a_line_of_an_overlap_says_how_long_any_process_ran(sharing: str, running: str, tmp_path: Path) -> None:
    head, (line,) = texts.overlaps(read(written(tmp_path, lines=overlap(sharing, 1.75))).overlaps)
    told = dict(zip(head, line, strict=True))
    assert (told["Processes at once"], told["Any running"], told["SMs of each"]) == ("1.75", running, "8, 8")


def test_a_value_of_the_environment_appears_once_if_files_agree() -> None:
    first = document(run(), environment={"gpu": {"product": "P", "driver": "1"}, "cpus": 4})
    second = document(run(), environment={"gpu": {"product": "P", "driver": "2"}, "cpus": 4})
    assert texts.environment([first, second]) == [
        ("backend", "cupy"),
        ("gpu product", "P"),
        ("gpu driver", "1, 2"),
        ("cpus", "4"),
    ]
