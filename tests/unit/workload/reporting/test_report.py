"""The report: what is read and put together, what the page says, and what it must not say."""

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpushare_workload import cli
from gpushare_workload.backend.work import Grid, LoadKind
from gpushare_workload.bench.plan import Load, SharingMode
from gpushare_workload.bench.results.document import Document, Group, Run
from gpushare_workload.bench.results.summary import rows
from gpushare_workload.reporting import texts
from gpushare_workload.reporting.build import build
from gpushare_workload.reporting.selection import compared_clients, times
from gpushare_workload.reporting.files import read
from gpushare_workload.reporting.heatmap import slowdowns
from gpushare_workload.reporting.files import combined
from tests.unit.workload.bench.made_up import SMALL, document, run

SCALING = [
    run(mode, [kernels] * clients, repeat, memory_mib={1000 + it: 520 for it in range(clients)})
    for repeat in (0, 1)
    for clients in (1, 2)
    for mode, kernels in ((SharingMode.TIME_SLICING, 100 // clients), (SharingMode.MPS, 100))
]


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """The command line takes SIGTERM and SIGINT: they are given back."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def mix(kind: str, beside: str | None, slowdown: float, timed: bool = True) -> str:
    figures = {"launches_per_second": 100 / slowdown, "slowdown": slowdown}
    line = {"scenario": "mix", "event": "measured", "backend": "cupy", "timed": timed, "kind": kind, "beside": beside}
    return json.dumps({**line, **figures})


def written(directory: Path, *documents: Document, lines: tuple[str, ...] = ()) -> list[Path]:
    paths = []
    for number, one in enumerate(documents):
        paths.append(directory / f"{number}.json")
        paths[-1].write_text(json.dumps(one.as_json()))
    if lines:
        paths.append(directory / "mix.log")
        paths[-1].write_text("\n".join(lines))
    return paths


def test_the_page_has_the_plots_and_needs_nothing_else(tmp_path: Path) -> None:
    lines = ("no JSON", mix("compute", None, 1.0), mix("compute", "memory", 1.25), mix("memory", "compute", 1.5))
    page, figures = build(read(written(tmp_path, document(*SCALING), lines=lines)))
    assert list(figures) == ["gains", "throughput", "latency", "memory", "mix"]
    assert page.count("<img alt=") == 5
    assert set(re.findall(r'(?:src|href)="([a-z]+:)', page)) == {"data:"}
    assert "<script" not in page
    assert "2.00×" in page  # two clients: 200 against 100 kernels per second
    assert "gpushare-workload bench" in page
    assert "1.25" in page


def test_a_simulated_gpu_makes_no_claim_about_speed(tmp_path: Path) -> None:
    page, figures = build(read(written(tmp_path, document(*SCALING, simulated=True))))
    assert list(figures) == ["memory"]
    assert "nothing in them says anything about speed" in page
    assert "Kernels/s" not in page
    assert 'class="cards"' not in page


def test_what_a_file_says_cannot_become_part_of_the_page(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    page, _ = build(read(written(tmp_path, document(run(), environment={"gpu": {"product": evil}, evil: evil}))))
    assert "<script" not in page


def test_a_benchmark_that_did_not_end_is_told_of(tmp_path: Path) -> None:
    wrong = run(repeat=1, refused="9 TFLOP/s are above the GPU's 8")
    page, _ = build(read(written(tmp_path, document(run(), wrong, ended="WorkerError: client 3 died"))))
    assert "did not run to its end (WorkerError: client 3 died)" in page
    assert "1 runs are left out, since their figures cannot be true: 9 TFLOP/s" in page


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


def test_several_benchmarks_are_further_repeats_and_never_compared_with_each_other() -> None:
    slicing, mps = document(run(SharingMode.TIME_SLICING, (10,))), document(run(SharingMode.MPS, (100,)), run(SharingMode.MPS, (90,), 1))
    runs = combined([slicing, mps])
    assert [it.repeat for it in runs] == [0, 1, 2]
    assert [row.of_time_slicing for row in rows(runs)] == [None, None]


def test_files_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    other = document(run(), environment={"gpu": {"product": "NVIDIA A100"}})
    with pytest.raises(ValueError, match=r"different GPUs \(NVIDIA A100, NVIDIA H200\)"):
        read(written(tmp_path, document(run()), other))
    with pytest.raises(ValueError, match="some from a simulated one"):
        read(written(tmp_path, document(run()), lines=(mix("compute", None, 1.0, timed=False),)))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "holds no result of `bench` or `mix`"),
        ("{}", "holds no result"),
        ('{"schema": "gpushare.dev/bench/v1"}', "not a whole result of the benchmark: KeyError 'backend'"),
        ('{"scenario": "mix", "event": "measured"}', "not a whole line of `mix`"),
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


def test_modes_are_compared_where_most_of_them_were_measured() -> None:
    def table(*cases: tuple[SharingMode, int]) -> list[Any]:
        return rows([run(mode, (1,) * clients) for mode, clients in cases])

    everywhere = [(mode, clients) for mode in (SharingMode.MPS, SharingMode.TIME_SLICING) for clients in (1, 8, 16)]
    assert compared_clients(table(*everywhere), SMALL) == 8
    assert compared_clients(table(*everywhere, (SharingMode.STREAMS, 16)), SMALL) == 16
    assert compared_clients(table((SharingMode.MPS, 2), (SharingMode.MPS, 4)), SMALL) == 4
    assert compared_clients([], SMALL) is None


@pytest.mark.parametrize(
    ("ratio", "text"), [(1.5, "1.50×"), (26.84, "26.8×"), (120.4, "120×"), (0.5, "0.500×"), (1234.5, "1,234×")]
)
def test_a_ratio_is_told_with_three_digits(ratio: float, text: str) -> None:
    assert times(ratio) == text


def test_headlines_are_mps_against_time_slicing() -> None:
    (headline,) = words.headlines(rows(SCALING))
    assert (headline.figure, headline.text) == (
        "2.00×",
        "compute, 8 blocks: 2 clients under MPS against time-slicing; p99 50 µs instead of 50 µs",
    )


def test_a_pair_measured_twice_has_its_median(tmp_path: Path) -> None:
    lines = (mix("a", "a", 1.0), mix("a", "a", 3.0), mix("a", "b", 1.5), mix("a", None, 1.0))
    kinds, found = slowdowns(read(written(tmp_path, lines=lines)).pairs)
    assert (kinds, found) == (["a"], {("a", "a"): 2.0, ("a", "b"): 1.5})


def test_the_environment_is_told_once_where_files_agree() -> None:
    first = document(run(), environment={"gpu": {"product": "P", "driver": "1"}, "cpus": 4})
    second = document(run(), environment={"gpu": {"product": "P", "driver": "2"}, "cpus": 4})
    assert words.environment([first, second]) == [
        ("backend", "cupy"),
        ("gpu product", "P"),
        ("gpu driver", "1, 2"),
        ("cpus", "4"),
    ]


def test_the_command_writes_the_page_and_the_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loads = [Load(LoadKind.COMPUTE, grid) for grid in (Grid.SMALL, Grid.HALF)]
    runs: list[Run] = [
        run(mode, (5,) * n, load=load) for load in loads for n in (1, 3) for mode in (SharingMode.MPS, SharingMode.GRAPHS)
    ]
    (path,) = written(tmp_path, document(*runs))
    assert cli.main(["report", str(path), "--html", str(tmp_path / "o" / "r.html"), "--png", str(tmp_path / "o")]) == 0
    assert (tmp_path / "o" / "r.html").read_text().startswith("<!doctype html>")
    assert {it.name for it in (tmp_path / "o").glob("*.png")} == {"throughput.png", "latency.png"}
    assert (tmp_path / "o" / "throughput.png").read_bytes()[:4] == b"\x89PNG"


def test_a_report_that_goes_nowhere_is_a_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", str(tmp_path / "x.json")]) == 2
    assert "--html, --png: say where the report shall go" in capsys.readouterr().err
