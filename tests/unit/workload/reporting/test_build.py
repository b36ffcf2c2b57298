"""The page: its plots, and what it must not say."""

import re
from pathlib import Path

from gpushare_workload.reporting.build import build
from gpushare_workload.reporting.files import read
from tests.unit.workload.bench.made_up import document, run
from tests.unit.workload.reporting.inputs import SCALING, mix, written


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
