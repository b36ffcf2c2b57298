"""The documentation as a whole: no dead link, no page that nobody finds, pictures as their script draws them.

The site's own build (`make docs`) checks the same again, with what Sphinx knows besides: syntax,
and that no page loads anything from the network.
"""

import runpy
from pathlib import Path

import pytest

from localcluster.paths import REPOSITORY
from tests.unit.docs.links import anchors, dead_links, orphans

DOCS = REPOSITORY / "docs"
MEASUREMENTS = REPOSITORY / "measurements"
OF_THE_SITE = [
    *sorted(DOCS.rglob("*.md")), *sorted(MEASUREMENTS.glob("*.md")), *sorted((MEASUREMENTS / "pages").rglob("*.md"))
]  # fmt: skip
PAGES = [*OF_THE_SITE, *sorted(REPOSITORY.glob("*.md"))]
DRAW = runpy.run_path(str(DOCS / "images" / "draw.py"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_every_link_within_the_repository_leads_to_a_file_and_a_heading(page: Path) -> None:
    assert dead_links([page]) == []


def test_the_navigation_reaches_every_page() -> None:
    assert orphans(DOCS / "index.md", OF_THE_SITE) == []


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A small documentation without a mistake."""
    (tmp_path / "how").mkdir()
    (tmp_path / "index.md").write_text(
        "# Home\n\n## Use\n\n- [A](a.md): [first](a.md#what-it-is)\n- [How](how/README.md)\n"
    )
    (tmp_path / "a.md").write_text("# A\n\n## What `it` is\n![picture](a.svg) [up](#a)\n```sh\n# [no](link.md)\n```\n")
    (tmp_path / "a.svg").write_text("<svg/>")
    (tmp_path / "how" / "README.md").write_text("# How\n\n| page | |\n| --- | --- |\n| [b](b.md) | b |\n")
    (tmp_path / "how" / "b.md").write_text("# B\n\n[home](../index.md)\n")
    return tmp_path


def test_a_documentation_without_a_mistake_passes(site: Path) -> None:
    assert dead_links(sorted(site.rglob("*.md"))) == []
    assert orphans(site / "index.md", site.rglob("*.md")) == []


@pytest.mark.parametrize(
    ("page", "text", "problem"),
    [
        ("a.md", "[gone](gone.md)", "a.md: gone.md does not exist"),
        ("a.md", "[gone](how/README.md#gone)", "a.md: how/README.md#gone has no such heading"),
        ("a.md", "[gone](#gone)", "a.md: #gone has no such heading"),
        ("a.md", "![gone](gone.svg)", "a.md: gone.svg does not exist"),
        ("how/b.md", "[not from here](a.md)", "b.md: a.md does not exist"),
    ],
)
def test_a_dead_link_is_found(site: Path, page: str, text: str, problem: str) -> None:
    with (site / page).open("a") as file:
        file.write(text)
    assert dead_links(sorted(site.rglob("*.md"))) == [problem]


@pytest.mark.parametrize("page", ["c.md", "how/c.md"])
def test_a_page_that_no_list_names_is_found_though_a_sentence_links_it(site: Path, page: str) -> None:
    (site / page).write_text("# C\n")
    with (site / "index.md").open("a") as file:
        file.write(f"\nSee also [C]({page}).\n")
    assert orphans(site / "index.md", site.rglob("*.md")) == [site / page]


def test_headings_have_the_anchors_that_git_hosts_give_them() -> None:
    text = "# `clients.perGpu`, in short\n## While no agent runs\n## While no agent runs\n```\n# no heading\n```\n"
    assert anchors(text) == {"clientspergpu-in-short", "while-no-agent-runs", "while-no-agent-runs-1"}


@pytest.mark.parametrize("name", DRAW["PICTURES"])
def test_a_picture_is_what_its_script_draws(name: str) -> None:
    assert (DOCS / "images" / f"{name}.svg").read_text() == DRAW["PICTURES"][name](), "run docs/images/draw.py"


def test_every_picture_is_drawn_and_shown() -> None:
    files = {path.stem for path in (DOCS / "images").glob("*.svg")}
    assert files == set(DRAW["PICTURES"])
    text = "".join(page.read_text() for page in PAGES)
    assert all(f"images/{name}.svg)" in text for name in files)


def test_a_text_that_is_wider_than_its_box_is_not_drawn() -> None:
    with pytest.raises(DRAW["TooWide"], match="needs 330 px and has 82"):
        DRAW["Picture"](100, 100, "narrow").card("ours", 0, 0, 100, 50, "title", "m" * 50)


def test_the_readme_can_be_read_in_ten_minutes() -> None:
    assert len((REPOSITORY / "README.md").read_text()) <= 7000
