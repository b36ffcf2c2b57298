"""The documentation as a site: `make docs`.

Guarantees: the site is made without the network and loads nothing from it; a dead link, anchor or image, and a
page that the navigation does not reach, fail the build. The navigation is what docs/index.md and the README.md of each
folder list, in their order: no second list has to be kept.

The site holds two trees of the repository, docs/ and the pages of measurements/: so its source is the repository
itself, and links between the two are the same on the site and on a Git host.

Why Sphinx, with MyST for Markdown and Furo for the looks: it treats dead references and orphan pages as errors by
itself, needs no other host, and is maintained; MkDocs 1 has had no release since 2024, and Material for MkDocs has
announced the end of its maintenance for November 2026.
"""

import re
import tomllib
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.transforms import SphinxTransform

DOCS = Path(__file__).parent
REPOSITORY = DOCS.parent

project = "gpushare"
release = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]
html_title = f"gpushare {release}"
extensions = ["myst_parser"]
root_doc = "docs/index"
include_patterns = ["docs/**", "measurements/README.md", "measurements/pages/**"]

toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#2f6f3e", "color-brand-content": "#1a6b34"},
    "dark_css_variables": {"color-brand-primary": "#7fce94", "color-brand-content": "#7fce94"},
}

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]

_ENTRY = re.compile(r"^(?:- |\| )\[([^]]+)\]\(([^)#:]+)\.md\)", re.MULTILINE)
_SECTION = re.compile(r"^## (.+)$", re.MULTILINE)
_OUTSIDE = re.compile(r'<(?:script|link|img|iframe|source)\b[^>]*\b(?:src|href)="(?:https?:)?//[^"]*"')


def add_navigation(_: Sphinx, page: str, source: list[str]) -> None:
    """Append the hidden tables of contents: to docs/index.md one for each section, to a folder's README.md one."""
    if page == "docs/index":
        _, *sections = _SECTION.split(source[0])
        tables = zip(sections[::2], sections[1::2], strict=True)
    elif page.endswith("/README"):
        tables = zip([""], source, strict=True)
    else:
        return
    source[0] += "".join(_table(caption, _ENTRY.findall(text)) for caption, text in list(tables))


def _table(caption: str, entries: list[tuple[str, str]]) -> str:
    """With a caption, the navigation takes the names of the links; without, the pages' own titles."""
    if not entries:
        return ""
    pages = [f"{name} <{page}>" if caption else page for name, page in entries]
    options = [":hidden:", f":caption: {caption}"] if caption else [":hidden:"]
    return "\n".join(["", "```{toctree}", *options, "", *pages, "```", ""])


class LinksOutOfTheSite(SphinxTransform):
    """A link to a folder or a page of the repository that the site does not hold becomes plain text; it must exist."""

    default_priority = 5  # before the links are resolved

    def apply(self, **kwargs: Any) -> None:
        folder = (REPOSITORY / self.env.docname).parent
        for link in list(self.document.findall(pending_xref)):
            start = REPOSITORY if link["refdomain"] == "doc" else folder
            target = (start / link["reftarget"]).resolve()
            page = target.with_name(f"{target.name}.md")
            elsewhere = page.is_file() and str(page.relative_to(REPOSITORY))[:-3] not in self.env.found_docs
            if link["refdomain"] != "std" and (target.is_dir() or elsewhere):
                link.replace_self(nodes.inline("", "", *link.children))


def lead_to_the_index(app: Sphinx, error: Exception | None) -> None:
    """Write an index.html that leads to that of docs/."""
    if error is None:
        to = f"{app.config.root_doc}.html"
        page = f'<!doctype html><meta http-equiv="refresh" content="0; url={to}"><a href="{to}">{html_title}</a>\n'
        (Path(app.outdir) / "index.html").write_text(page)


def check_offline(app: Sphinx, error: Exception | None) -> None:
    """Fail where a page would load something from another host."""
    if error is not None:
        return
    for page in sorted(Path(app.outdir).rglob("*.html")):
        found = _OUTSIDE.search(page.read_text())
        if found is not None:
            raise ExtensionError(f"{page}: loads {found[0]} from the network")


def setup(app: Sphinx) -> None:
    app.connect("source-read", add_navigation)
    app.connect("build-finished", lead_to_the_index)
    app.connect("build-finished", check_offline)
    app.add_transform(LinksOutOfTheSite)
