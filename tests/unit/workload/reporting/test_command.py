"""report: it writes the page and the pictures."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare_workload import cli
from gpushare_workload.backend.work import Grid, Load, LoadKind
from gpushare_workload.mps.modes import SharingMode
from gpushare_workload.results.document import Run
from tests.unit.workload.reporting.inputs import written
from tests.unit.workload.results.made_up import document, run


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Restores the signal handlers, which the command line replaces."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_the_command_writes_the_page_and_the_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loads = [Load(LoadKind.COMPUTE, grid) for grid in (Grid.SMALL, Grid.HALF)]
    runs: list[Run] = [
        run(mode, (5,) * n, load=load)
        for load in loads
        for n in (1, 3)
        for mode in (SharingMode.MPS, SharingMode.MPS_EQUAL_CAPS)
    ]
    (path,) = written(tmp_path, document(*runs))
    assert cli.main(["report", str(path), "--html", str(tmp_path / "o" / "r.html"), "--png", str(tmp_path / "o")]) == 0
    assert (tmp_path / "o" / "r.html").read_text().startswith("<!doctype html>")
    assert {picture.name for picture in (tmp_path / "o").glob("*.png")} == {"throughput.png", "latency.png"}
    assert (tmp_path / "o" / "throughput.png").read_bytes()[:4] == b"\x89PNG"


def test_a_report_that_goes_nowhere_is_a_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", str(tmp_path / "x.json")]) == 2
    assert "--html, --png: give at least one of them" in capsys.readouterr().err
