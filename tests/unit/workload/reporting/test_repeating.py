"""The commands that repeat what the page shows."""

import shlex
from pathlib import Path

from gpushare_workload import cli
from gpushare_workload.reporting import repeating
from gpushare_workload.results.files import read
from tests.unit.workload.reporting.inputs import overlap, pair, written
from tests.unit.workload.results.made_up import document, run


def test_commands_to_repeat_name_no_folder_of_the_measuring_machine() -> None:
    command = ("/usr/bin/gpushare-workload", "bench", "--clients", "1,8", "--output", "/root/out/depth.json")
    assert repeating.benchmarks([document(run(), command=command)] * 2) == [
        "gpushare-workload bench --clients 1,8 --output depth.json"
    ]


def test_mix_and_overlap_are_repeated_as_their_lines_say(tmp_path: Path) -> None:
    lines = (
        pair("compute", "memory", combined=0.6, sharing="time-slicing"),
        *(
            pair(*kinds, combined=1.5, threads=percent)
            for percent in (25.0, 100.0)
            for kinds in (("a", "b"), ("b", "b"))
        ),
        *overlap("time-slicing", 1.0),
        *(
            line
            for threads in (100.0, 50.0)
            for processes in (1, 2)
            for line in overlap("mps", 1.7, processes, threads)
        ),
        *overlap("mps", 3.6, processes=4),
    )
    collected = read(written(tmp_path, lines=lines))
    assert repeating.scenarios(collected.pairs, collected.overlaps) == [
        repeating.IN_SLICES,
        "gpushare-workload run mix --repeats 3 > mix-time-slicing.jsonl",
        "gpushare-workload run overlap --grid small --processes 2 --depth 1 > overlap-small-2-1-time-slicing.jsonl",
        repeating.UNDER_MPS,
        "gpushare-workload run mix --threads 100 25 --repeats 3 > mix-mps.jsonl",
        "gpushare-workload run overlap --grid small --processes 2 --depth 1 --threads 100 50"
        " > overlap-small-2-1-mps.jsonl",
        "gpushare-workload run overlap --grid small --processes 4 --depth 1 > overlap-small-4-1-mps.jsonl",
    ]


def test_what_was_not_measured_has_no_command(tmp_path: Path) -> None:
    collected = read(written(tmp_path, lines=(pair("a", "b", combined=1.5),)))
    assert repeating.scenarios(collected.pairs, ()) == [
        repeating.UNDER_MPS,
        "gpushare-workload run mix --repeats 3 > mix-mps.jsonl",
    ]
    assert repeating.scenarios((), ()) == []


def test_the_command_line_knows_every_option(tmp_path: Path) -> None:
    lines = (pair("a", "b", combined=1.5, threads=50.0), *overlap("mps", 1.7, threads=50.0))
    collected = read(written(tmp_path, lines=lines))
    for line in repeating.scenarios(collected.pairs, collected.overlaps):
        if not line.startswith("#"):
            _, *words = shlex.split(line.partition(" > ")[0])
            assert cli.parser().parse_args(words).threads == [50.0]
