"""The pages stay few and short: each is read in ten minutes, and its lines fit an editor."""

import re
from pathlib import Path

import pytest

from localcluster.paths import REPOSITORY

DOCS = REPOSITORY / "docs"
RECORDS = DOCS / "decisions"
MEASUREMENTS = REPOSITORY / "measurements"
USERS = [page for page in sorted(DOCS.rglob("*.md")) if RECORDS not in page.parents]
WRITTEN = [*sorted(REPOSITORY.glob("*.md")), *(page for page in sorted(DOCS.rglob("*.md")) if page.stem != "api")]
LOOKED_UP = {"api", "architecture", "events", "metrics-list", "reasons", "scenarios", "threats", "mps", "glossary"}
"""Pages in which one looks something up and which nobody reads from the top: their length is free."""
MOST_PAGES, MOST_WORDS, MOST_COLUMNS, MOST_ROWS, MOST_CHARACTERS = 50, 2400, 6, 20, 120

_FENCE = re.compile(r"^ *(`{3,})[^\n]*\n.*?^ *\1`*$", re.MULTILINE | re.DOTALL)
_TABLE = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)
_LONE_LINK = re.compile(r"^\s*(?:[-*] |\d+\. )?!?\[.*\]\(\S+\)[.,:]?$|^\s*\(?https?://\S+$")


def prose(text: str) -> str:
    """A page without its code and its tables, neither of which can be broken."""
    return _TABLE.sub("", _FENCE.sub("", text))


def too_long(text: str) -> list[str]:
    """Lines of prose above the limit, but for those that are one picture or one link."""
    return [line for line in prose(text).splitlines() if len(line) > MOST_CHARACTERS and not _LONE_LINK.match(line)]


def tables(text: str) -> list[tuple[int, int]]:
    """(columns, rows) of each table; its head does not count as a row."""
    rows = [table.splitlines() for table in _TABLE.findall(_FENCE.sub("", text))]
    return [(len(re.findall(r"(?<!\\)\|", table[0])) - 1, len(table) - 2) for table in rows]


def test_the_documentation_has_about_fifty_pages() -> None:
    """Decision records are not counted: nobody reads them from first to last."""
    evidence = [page for page in MEASUREMENTS.rglob("*.md") if "results" not in page.parts]
    assert len(USERS) + len(evidence) <= MOST_PAGES


@pytest.mark.parametrize("page", [page for page in USERS if page.stem not in LOOKED_UP], ids=lambda page: page.stem)
def test_a_page_is_read_in_ten_minutes(page: Path) -> None:
    text = page.read_text()
    assert len(text.split()) <= MOST_WORDS
    for columns, rows in tables(text):
        assert columns <= MOST_COLUMNS
        assert rows <= MOST_ROWS


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.stem)
def test_lines_of_prose_have_at_most_120_characters(page: Path) -> None:
    assert too_long(page.read_text()) == []


def test_a_page_begins_with_its_title_and_an_answer() -> None:
    for page in USERS:
        title, empty, answer, *_ = page.read_text().splitlines()
        assert title.startswith("# "), page
        assert not empty, page
        assert answer, page
        assert not answer.startswith("#"), page


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("short\n", 0),
        ("word " * 25 + "\n", 1),
        ("```\n" + "word " * 25 + "\n```\n", 0),
        ("| " + "word " * 25 + "|\n", 0),
        ("![" + "word " * 25 + "](picture.svg)\n", 0),
        ("- [" + "word " * 25 + "](page.md)\n", 0),
        ("- [" + "word " * 25 + "](page.md): more\n", 1),
    ],
)
def test_a_line_that_can_be_broken_is_found(text: str, lines: int) -> None:
    assert len(too_long(text)) == lines


def test_columns_and_rows_of_a_table_are_counted() -> None:
    assert tables("# A\n\n| a | b |\n| --- | --- |\n| 1 | 2 |\n| 3 | x \\| y |\n\ntext\n") == [(2, 2)]
