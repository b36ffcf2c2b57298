"""docs/does-it-pay.md says what the stored comparisons say, and README no more than that page."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpushare.kubectl.rules.trial.cases import TrialMode
from localcluster.paths import REPOSITORY
from measurements.gpu.programs import pays
from measurements.gpu.programs.compare import PARTS
from measurements.gpu.programs.pays import HostFigures
from tests.page_tables import filled

PAGE = (REPOSITORY / "docs/does-it-pay.md").read_text()
README = " ".join((REPOSITORY / "README.md").read_text().split())


def host(copies: int, p99: float | None = None, gain: float | None = 2.0, name: str = "a") -> HostFigures:
    return HostFigures(copies, name, 1, gain, None, 0.5, p99)


def test_the_tables_are_what_the_script_writes_from_the_results(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(filled(PAGE, dict.fromkeys(("work", "saved", "losses"), "nothing")))
    pays.main(page)
    assert page.read_text() == PAGE


@pytest.mark.parametrize(
    ("figures", "copies"),
    [
        ([host(2, 1.2), host(4, 2.0), host(8, 2.1)], 4),
        ([host(2, 2.1), host(4, 1.0)], 1),
        ([host(4, 1.9), host(4, 2.4, name="b")], 1),
        ([host(4, 1.9, gain=None), host(8, 1.9)], 8),
        ([host(4, None)], 1),
        ([], 1),
    ],
    ids=["the most within twice", "fewer failed", "one GPU above", "one alone varied", "no latency", "nothing"],
)
def test_a_service_shares_with_as_many_as_keep_its_p99_on_every_gpu(
    figures: Sequence[HostFigures], copies: int
) -> None:
    assert pays.copies_that_share(figures, waited_for=True) == copies


def test_batch_work_shares_with_the_fewest_that_do_nearly_the_most() -> None:
    figures = [host(2, gain=1.0), host(4, gain=1.20), host(7, gain=1.24), host(7, gain=1.21, name="b")]
    assert pays.copies_that_share(figures, waited_for=False) == 4


@pytest.mark.parametrize(("divisor", "gpus"), [(1, 0), (1.3, 1), (2, 4), (8, 7), (6.5, 6), (100, 7)])
def test_the_gpus_saved_are_those_that_the_rest_does_without(divisor: float, gpus: int) -> None:
    assert pays.saved(divisor) == gpus


def test_copies_are_held_against_a_batching_process_of_their_own_gpu() -> None:
    hosts = [HostFigures(8, gpu, 1, 2.0, None, 0.5, None, rate) for gpu, rate in (("a", 300.0), ("b", 90.0))]
    assert pays.batched_cell(hosts, {"a": 600.0, "c": 1.0}) == "0.5 (1 GPU, 1 run)"
    assert pays.batched_cell(hosts, {}) == "not measured"


def test_what_nobody_measured_has_a_command() -> None:
    lines = re.findall(r"compare out/\d .* --parts (.+)", (REPOSITORY / "measurements/README.md").read_text())
    asked = {part for line in lines for part in line.split()}
    missing = {row.part for row in pays.CLASSES if not pays.host_figures(row.part)}
    assert {*missing, *(row.batched for row in pays.CLASSES if row.batched)} <= asked <= {part.name for part in PARTS}


def row(table: str, title: str) -> list[str]:
    """The cells of the line of a class in a table of the page."""
    body = re.search(rf"<!-- {table}: .*?-->\n(.*?)<!-- end", PAGE, re.DOTALL)
    assert body
    [line] = [line for line in body[1].splitlines() if line.startswith(f"| {title}")]
    return line.strip("| ").split(" | ")


@pytest.mark.parametrize(
    ("title", "words"),
    [
        ("Detection", "{} times the work of one YOLOS"),
        ("Decoding, a graph: GPT, 1.3 billion", "{} times that of a GPT of 1.3 billion parameters"),
        ("k-means", "{} times that of k-means"),
    ],
)
def test_the_readme_has_the_figures_of_the_page(title: str, words: str) -> None:
    work = row("work", title)[2].partition(" (")[0].replace("–", " to ")
    assert words.format(work) in README


def test_the_page_says_how_alike_copies_are_served() -> None:
    told = " ".join(PAGE.split())
    shares = [pays.fairness("resnet-infer", 8, mode) for mode in (TrialMode.MPS, TrialMode.SLICES)]
    under_mps, in_slices = (f"{spread[0]:.2f} to {spread[-1]:.2f}" for spread in shares)
    assert f"did {under_mps} of what the fastest did, by GPU, and {in_slices} in time slices" in told
    least = min(pays.fairness(part, 8, TrialMode.MPS)[0] for part in ("yolos", "decode-medium", "decode-1.3b"))
    assert f"YOLOS or GPTs with graphs did {least:.2f} or more" in told


def test_what_fails_the_go_or_no_go_is_told_with_its_p99() -> None:
    told = " ".join(PAGE.split())
    spans = []
    for part in ("decode-medium", "decode-1.3b"):
        p99 = [figures.p99 for figures in pays.host_figures(part) if figures.copies == 8 and figures.p99]
        spans.append(f"{min(p99):.1f} to {max(p99):.1f}")
    assert f"355 million have a p99 of {spans[0]} times that alone, eight of 1.3 billion {spans[1]} times" in told
