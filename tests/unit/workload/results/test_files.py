"""The files: what is read, what is combined, and what is refused with its name."""

import re
from pathlib import Path

import pytest

from gpushare.kubectl.rules.trial.spread import Spread
from gpushare_workload.mps.modes import SharingMode
from gpushare_workload.results.document import Document, Group
from gpushare_workload.results.files import Pair, Setting, combined, read
from gpushare_workload.results.summary import rows
from tests.unit.workload.reporting.inputs import overlap, pair, written
from tests.unit.workload.results.made_up import document, run


def pod(number: int, pods: int, kernels: int) -> Document:
    return document(run(SharingMode.MPS, (kernels,)), group=Group("g", number, pods))


def test_the_files_of_a_jobs_pods_are_one_benchmark() -> None:
    (whole,) = combined([pod(0, 3, 10), pod(2, 3, 30), pod(1, 3, 20)])
    assert (whole.clients, sorted(whole.rates)) == (3, [10, 20, 30])
    assert [result.client for result in whole.results] == [0, 1, 2]


@pytest.mark.parametrize("there", [(0, 1), (0, 1, 1), (0, 1, 2, 2)])
def test_a_pods_file_that_is_missing_or_there_twice_is_an_error(there: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="a file of each pod from 0 to 2 is needed once; here are 0, 1"):
        combined([pod(number, 3, 10) for number in there])


def test_several_benchmarks_are_repeats_and_never_compared_with_each_other() -> None:
    slicing, mps = (
        document(run(SharingMode.TIME_SLICING, (10,))),
        document(run(SharingMode.MPS, (100,)), run(SharingMode.MPS, (90,), 1)),
    )
    runs = combined([slicing, mps])
    assert [each.repeat for each in runs] == [0, 1, 2]
    assert [row.of_time_slicing for row in rows(runs)] == [None, None]


def test_files_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    other = document(run(), environment={"gpu": {"product": "NVIDIA A100"}})
    with pytest.raises(ValueError, match=r"different GPUs \(NVIDIA A100, NVIDIA H200\)"):
        read(written(tmp_path, document(run()), other))
    with pytest.raises(ValueError, match="some from a simulated one"):
        read(written(tmp_path, document(run()), lines=(pair("compute", "memory", combined=1.0, timed=False),)))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "holds no result of `bench`, `mix` or `overlap`"),
        ("{}", "holds no result"),
        ('{"schema": "gpushare.dev/bench/v2"}', "not a whole result of the benchmark: KeyError 'backend'"),
        ('{"schema": "gpushare.dev/bench/v1"}', "the schema is 'gpushare.dev/bench/v1', not"),
        ('{"scenario": "mix", "event": "pair"}', "not a whole line of `mix`"),
        ('{"scenario": "overlap", "event": "timeline"}', "not a whole line of `overlap`"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(
    content: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=re.escape(str(path))) as raised:
        read([path])
    assert message in str(raised.value)


def test_the_lines_of_scenarios_are_read_with_how_the_gpu_was_shared(tmp_path: Path) -> None:
    lines = (*overlap("time-slicing", 1.0), *overlap("mps", 1.75), pair("a", "b", combined=1.5, threads=50.0))
    collected = read(written(tmp_path, lines=lines))
    assert [(line.setting, line.at_once.median, line.running_percent) for line in collected.overlaps] == [
        (Setting("time-slicing", 100.0), 1.0, None),
        (Setting("mps", 100.0), 1.75, Spread(96.0, 95.0, 97.0)),
    ]
    assert [line.pieces for line in collected.timelines] == [((0, 0.0, 5.0), (1, 10.0, 15.0))] * 2
    assert collected.pairs == (Pair(Setting("mps", 50.0), ("a", "b"), Spread(1.5, 1.49, 1.51), "partly", 3),)
    assert [line.repeats for line in collected.overlaps] == [None, None]
