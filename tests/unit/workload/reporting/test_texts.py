"""Headlines and the environment."""

from dataclasses import replace
from pathlib import Path

import pytest

from gpushare_workload.backend.work import Grid, LoadKind
from gpushare_workload.bench.plan import Load, SharingMode
from gpushare_workload.bench.results.summary import rows
from gpushare_workload.reporting import texts
from gpushare_workload.reporting.files import read
from tests.unit.workload.bench.made_up import document, run
from tests.unit.workload.reporting.inputs import SCALING, overlap, written

DEEP = [
    replace(one, load=Load(LoadKind.COMPUTE, Grid.SMALL, 64)) for one in SCALING if one.mode is SharingMode.TIME_SLICING
]
DEEP += [replace(one, mode=SharingMode.MPS, threads=100.0) for one in DEEP]
"""At depth 64 MPS gains nothing."""


def test_headlines_are_mps_against_time_slices_and_one_client_by_depth() -> None:
    (headline,) = texts.headlines(rows([*SCALING, *DEEP]))
    assert (headline.figure, headline.text) == (
        "2.00× → 1.00×",
        "compute, 8 blocks, 2 clients, depth 1 → 64: MPS against time slices; against one client alone 2.00× → 1.00×",
    )
    (headline,) = texts.headlines(rows(SCALING))
    assert (headline.figure, headline.text) == (
        "2.00×",
        "compute, 8 blocks, 2 clients, depth 1: MPS against time slices; against one client alone 2.00×",
    )


def test_a_verdict_has_both_ratios_at_both_ends() -> None:
    head, lines = texts.verdicts(rows([*SCALING, *DEEP]))
    assert head == ("Load", "Verdict", "Clients", "Depth", "× time slices", "× one client alone")
    assert lines == [
        ("Compute, 8 blocks", "share, if programs wait often", "2", "1", "2.00", "2.00"),
        ("", "", "2", "64", "1.00", "1.00"),
    ]


@pytest.mark.parametrize(
    ("sharing", "running"), [("mps", "96 (95–97) %"), ("time-slicing", "–")], ids=["told", "an earlier version"]
)
def test_a_line_of_an_overlap_says_how_long_any_process_ran(sharing: str, running: str, tmp_path: Path) -> None:
    head, (line,) = texts.overlaps(read(written(tmp_path, lines=overlap(sharing, 1.75))).overlaps)
    told = dict(zip(head, line, strict=True))
    assert (told["Processes at once"], told["Any running"], told["SMs of each"]) == ("1.75", running, "8, 8")


@pytest.mark.parametrize(
    ("gains", "words"),
    [
        ([26.0, 7.0], "share: it pays at every depth"),
        ([1.8, 1.1], "share, if programs wait often"),
        ([1.2, 1.0], "a little"),
        ([1.05, 0.9], "no gain"),
    ],
)
def test_verdicts_follow_the_gains(gains: list[float], words: str) -> None:
    assert texts.verdict(gains) == words


def test_a_value_of_the_environment_appears_once_if_files_agree() -> None:
    first = document(run(), environment={"gpu": {"product": "P", "driver": "1"}, "cpus": 4})
    second = document(run(), environment={"gpu": {"product": "P", "driver": "2"}, "cpus": 4})
    assert texts.environment([first, second]) == [
        ("backend", "cupy"),
        ("gpu product", "P"),
        ("gpu driver", "1, 2"),
        ("cpus", "4"),
    ]


def test_the_commands_to_repeat_name_no_folder_of_the_machine_that_measured() -> None:
    command = ("/usr/bin/gpushare-workload", "bench", "--clients", "1,8", "--output", "/root/out/depth.json")
    assert texts.commands([document(run(), command=command)] * 2) == [
        "gpushare-workload bench --clients 1,8 --output depth.json"
    ]
