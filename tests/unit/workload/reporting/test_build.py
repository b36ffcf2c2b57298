"""The page: its plots, and what it must not say."""

import re
from dataclasses import replace
from pathlib import Path

from gpushare_workload.backend.work import Grid, Load, LoadKind
from gpushare_workload.reporting.build import build
from gpushare_workload.results.files import read
from tests.unit.workload.reporting.inputs import SCALING, overlap, pair, written
from tests.unit.workload.results.made_up import document, run


def test_the_page_has_the_plots_and_needs_nothing_else(tmp_path: Path) -> None:
    lines = ("no JSON", pair("compute", "memory", combined=1.25), *overlap("time-slicing", 1.0), *overlap("mps", 1.75))
    deep = [replace(each, load=Load(LoadKind.COMPUTE, Grid.SMALL, 16)) for each in SCALING]
    page, figures = build(read(written(tmp_path, document(*SCALING, *deep), lines=lines)))
    assert list(figures) == ["gains", "timeline", "depth", "pairs", "throughput", "latency", "memory"]
    assert page.count("<img alt=") == 7
    assert set(re.findall(r'(?:src|href)="([a-z]+:)', page)) == {"data:"}
    assert "<script" not in page
    assert "2.00×" in page  # two clients: 200 against 100 kernels per second
    assert "Share: it pays at every depth." in page
    assert "1.75" in page
    commands = re.sub("<[^>]+>", "", page.partition("<pre>")[2]).splitlines()
    assert [" ".join(line.split()[:3]) for line in commands if line.startswith("gpushare")] == [
        "gpushare-workload bench",
        "gpushare-workload run overlap",
        "gpushare-workload run mix",
        "gpushare-workload run overlap",
    ]
    assert "1.25" in page


def test_a_picture_opens_and_closes_by_links_within_the_page(tmp_path: Path) -> None:
    page, figures = build(read(written(tmp_path, document(*SCALING))))
    places = re.findall(r'id="([^"]+)"', page)
    assert sorted(places) == sorted([*figures, *(f"{name}-large" for name in figures)])
    assert re.findall(r'href="#([^"]+)"', page) == [place for name in figures for place in (name, f"{name}-large")]


def test_a_simulated_gpu_makes_no_claim_about_speed(tmp_path: Path) -> None:
    page, figures = build(read(written(tmp_path, document(*SCALING, simulated=True))))
    assert list(figures) == ["memory"]
    assert "they say nothing about speed" in page
    assert "Kernels/s" not in page
    assert 'class="cards"' not in page


def test_what_a_file_says_cannot_become_part_of_the_page(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    page, _ = build(read(written(tmp_path, document(run(), environment={"gpu": {"product": evil}, evil: evil}))))
    assert "<script" not in page


def test_the_page_says_that_a_benchmark_did_not_end(tmp_path: Path) -> None:
    wrong = run(repeat=1, refused="9 TFLOP/s are above the GPU's 8")
    page, _ = build(read(written(tmp_path, document(run(), wrong, ended="WorkerError: client 3 died"))))
    assert "did not run to its end (WorkerError: client 3 died)" in page
    assert "1 runs are left out, since their figures cannot be true: 9 TFLOP/s" in page
