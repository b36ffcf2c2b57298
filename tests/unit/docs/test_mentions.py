"""What chart, code and examples say of the documentation, and pages of the code: what they name is there."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from localcluster.paths import REPOSITORY
from tests.unit.docs.links import anchors

ROOMS = (".github", "charts", "crds", "examples", "localcluster", "measurements", "native", "operator", "release")
ROOMS += ("tests", "workload", "Makefile")
MENTION = re.compile(r"(?<![\w/.-])((?:docs|measurements)/[\w./-]+?\.md)(#[\w-]+)?(?![\w-])")
WRITTEN_BY_TESTS = {REPOSITORY / "tests" / "unit" / "docs" / "test_mentions.py"}
RESULTS = REPOSITORY / "measurements" / "results"

Mention = tuple[str, str, str]
"""(file that speaks of it, page, heading or nothing), all from the root of the repository."""


def files(room: Path) -> Iterator[Path]:
    for path in [room] if room.is_file() else sorted(room.rglob("*")):
        generated = path.is_relative_to(RESULTS) or "__pycache__" in path.parts or path in WRITTEN_BY_TESTS
        if path.is_file() and not generated:
            yield path


def mentions(path: Path, root: Path = REPOSITORY) -> list[Mention]:
    try:
        text = path.read_text()
    except UnicodeDecodeError:
        return []
    named = MENTION.findall(text)
    return [(str(path.relative_to(root)), page, heading.removeprefix("#")) for page, heading in named]


def dead(mention: Mention, root: Path = REPOSITORY) -> str | None:
    """A sentence, where the page or its heading is not there."""
    file, page, heading = mention
    if not (root / page).is_file():
        return f"{file}: {page} does not exist"
    if heading and heading not in anchors((root / page).read_text()):
        return f"{file}: {page} has no heading #{heading}"
    return None


MENTIONS = sorted({mention for room in ROOMS for path in files(REPOSITORY / room) for mention in mentions(path)})


IN_CODE = re.compile(
    r"`((?:charts|examples|localcluster|measurements|native|operator|release|tests|workload)/[\w./-]*\w)`"
)
PAGES = [*sorted((REPOSITORY / "docs").rglob("*.md")), *sorted(REPOSITORY.glob("*.md"))]
NAMED = sorted({(page, path) for page in PAGES for path in IN_CODE.findall(page.read_text())})
WRITTEN_BY_RUNS = {"tests/cluster/long-run.json"}


@pytest.mark.parametrize(("page", "path"), NAMED, ids=[f"{page.stem}-{path}" for page, path in NAMED])
def test_a_file_that_a_page_names_is_there(page: Path, path: str) -> None:
    assert path in WRITTEN_BY_RUNS or (REPOSITORY / path).exists(), f"{page.name} names {path}"


def test_chart_and_code_name_pages() -> None:
    rooms = {file.partition("/")[0] for file, _, _ in MENTIONS}
    assert {"charts", "operator", "workload"} <= rooms


def test_every_page_that_is_named_outside_of_the_docs_is_there() -> None:
    assert [problem for mention in MENTIONS if (problem := dead(mention))] == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("see docs/a.md", None),
        ("see docs/a.md#first-steps.", None),
        ("(docs/gone.md)", "code.py: docs/gone.md does not exist"),
        ("`docs/a.md#gone`", "code.py: docs/a.md has no heading #gone"),
    ],
)
def test_a_name_without_a_page_or_heading_is_found(tmp_path: Path, text: str, problem: str | None) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text("# A\n\n## First steps\n")
    (tmp_path / "code.py").write_text(text)
    (mention,) = mentions(tmp_path / "code.py", tmp_path)
    assert dead(mention, tmp_path) == problem
