"""Every file of results is cited by a page or read by what writes the pages: what is neither goes."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

from localcluster.paths import REPOSITORY
from measurements.gpu.programs.page import page as programs
from measurements.gpu.workload.bench_tables import tables
from measurements.long_life.publish import page as long_life
from measurements.long_life.record import Record
from measurements.peers import page as peers
from measurements.scale.week import page as week
from tests.faults.publish import page as faults
from tests.faults.record import STORED
from tests.unit.docs.links import targets

RESULTS = REPOSITORY / "measurements" / "results"
PAGES = [
    *REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md"), *(REPOSITORY / "measurements").rglob("*.md")
]  # fmt: skip


def read_by_the_writers(write: Callable[[], object]) -> set[Path]:
    """The files below results that are opened meanwhile."""
    opened = set[Path]()
    watching = True

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if watching and event == "open" and isinstance(arguments[0], str) and "/measurements/results/" in arguments[0]:
            opened.add(Path(arguments[0]).resolve())

    sys.addaudithook(hook)
    write()
    watching = False
    return opened


def write_all() -> None:
    programs()
    tables(RESULTS)
    peers.text(peers.read(peers.PUBLISHED), peers.read(peers.BURSTS, simulated_too=True))
    long_life(Record().stretches())
    faults(json.loads(STORED.read_text()))
    week.filled(week.PAGE.read_text(), json.loads(week.FIGURES.read_text()))


def uncited(results: Path, cited: set[Path]) -> list[str]:
    files = {path for path in results.rglob("*") if path.is_file()}
    return sorted(str(path.relative_to(results)) for path in files - cited)


def test_each_result_is_cited_by_a_page_or_read_by_a_writer() -> None:
    cited = {target for page in PAGES for target in targets(page)} | read_by_the_writers(write_all)
    assert uncited(RESULTS, cited) == []


def test_a_result_that_nobody_cites_is_found(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("[figures](results/a.json#x) ![picture](results/a.png)\n")
    (tmp_path / "results").mkdir()
    for name in ("a.json", "a.png", "b.json"):
        (tmp_path / "results" / name).write_text("{}")
    cited = set(targets(tmp_path / "page.md"))
    assert uncited(tmp_path / "results", cited) == ["b.json"]
