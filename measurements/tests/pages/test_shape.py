"""The pages of the measurements are read in ten minutes, like those of docs/: few, short, with tables that fit."""

from pathlib import Path

import pytest

from localcluster.paths import REPOSITORY
from tests.unit.docs.test_pages import MOST_COLUMNS, MOST_ROWS, MOST_WORDS, prose, tables, too_long

MEASUREMENTS = REPOSITORY / "measurements"
PAGES = [*sorted(MEASUREMENTS.glob("*.md")), *sorted((MEASUREMENTS / "pages").rglob("*.md"))]
MOST_PAGES = 10
LOOKED_UP = {"kernels"}
"""Pages in which one looks something up and which nobody reads from the top: their length is free."""


def test_the_evidence_stays_within_its_number_of_pages() -> None:
    assert 0 < len(PAGES) <= MOST_PAGES


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_lines_of_prose_have_at_most_120_characters(page: Path) -> None:
    assert too_long(page.read_text()) == []


@pytest.mark.parametrize("page", [page for page in PAGES if page.stem not in LOOKED_UP], ids=lambda page: page.stem)
def test_a_page_is_read_in_ten_minutes(page: Path) -> None:
    """What stands outside of its tables, in which one looks something up."""
    assert len(prose(page.read_text()).split()) <= MOST_WORDS


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_table_fits_a_screen(page: Path) -> None:
    for columns, rows in tables(page.read_text()):
        assert columns <= MOST_COLUMNS
        assert rows <= MOST_ROWS


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_begins_with_its_title_and_an_answer(page: Path) -> None:
    title, empty, answer, *_ = page.read_text().splitlines()
    assert title.startswith("# ")
    assert not empty
    assert answer
    assert not answer.startswith("#")
