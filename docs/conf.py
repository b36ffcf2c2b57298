"""The documentation as a site: `make docs`.

Guarantees: the site is made without the network and loads nothing from it; a dead link, anchor, image or Python
reference, and a page that the navigation does not reach, fail the build. The navigation is what docs/index.md and the
README.md of each folder list, in their order: no second list has to be kept.

The site holds two trees of the repository, docs/ and the pages of measurements/: so its source is the repository
itself, and links between the two are the same on the site and on a Git host.

Why Sphinx, with MyST for Markdown and Furo for the looks: it treats dead references and orphan pages as errors by
itself, needs no other host, and is maintained; MkDocs 1 has had no release since 2024, and Material for MkDocs has
announced the end of its maintenance for November 2026.
"""

import inspect
import re
import tomllib
from enum import Enum
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.utils import new_document
from myst_parser.parsers.sphinx_ import MystParser
from pydantic import BaseModel
from pydantic_core import PydanticUndefined
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.transforms import SphinxTransform
from sphinx.util.docutils import SphinxDirective

DOCS = Path(__file__).parent
REPOSITORY = DOCS.parent

project = "gpushare"
release = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]
html_title = f"gpushare {release}"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
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

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True}
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
add_module_names = False
# Only the public modules have pages, and no inventory is fetched: what a signature names besides is plain text.
nitpick_ignore_regex = [("py:.*", r".*")]

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


class Markdown(SphinxDirective):
    """Its content as Markdown: our docstrings are written in it, autodoc expects reStructuredText."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        document = new_document(self.env.docname, self.state.document.settings)
        MystParser().parse("\n".join(self.content), document)
        return document.children


def docstring_as_markdown(_: Sphinx, what: str, name: str, thing: object, options: Any, lines: list[str]) -> None:
    """Wrap a docstring in `markdown`, and append a model's fields with their descriptions, or an enum's values."""
    del name, options
    if what == "class" and isinstance(thing, type) and issubclass(thing, Enum):
        lines += ["", ", ".join(f"`{member.value}`" for member in thing)]
    if what == "class" and isinstance(thing, type) and issubclass(thing, BaseModel):
        lines[:] = [*([] if thing.__doc__ == BaseModel.__doc__ else lines), "", *_fields(thing)]
    if any(lines):
        lines[:] = [".. markdown::", "", *(f"   {line}" for line in lines), ""]


def _fields(model: type[BaseModel]) -> list[str]:
    return [
        f"- `{name}`"
        + (f" = `{field.default}`" if field.default not in (PydanticUndefined, None, "") else "")
        + (f": {field.description}" if field.description else "")
        for name, field in model.model_fields.items()
        if name in model.__annotations__
    ]


def choose_members(_: Sphinx, what: str, name: str, thing: object, skip: bool, options: Any) -> bool | None:
    """Models, enums and functions stand in the reference without a docstring too; Pydantic's settings never do."""
    del skip, options
    if name == "model_config":
        return True
    model_or_enum = isinstance(thing, type) and issubclass(thing, BaseModel | Enum)
    function = what == "module" and inspect.isfunction(thing) and not name.startswith("_")
    return False if model_or_enum or function else None


def shorten_signature(
    _: Sphinx, what: str, name: str, thing: object, options: Any, signature: str | None, returned: str | None
) -> tuple[str | None, str | None]:
    """None of models and enums, whose fields and values are listed; a default that a factory makes is `...`."""
    del what, name, options
    if isinstance(thing, type) and issubclass(thing, BaseModel | Enum):
        return "", None
    return signature and signature.replace("<factory>", "..."), returned


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
    app.connect("autodoc-process-docstring", docstring_as_markdown)
    app.connect("autodoc-skip-member", choose_members)
    app.connect("autodoc-process-signature", shorten_signature)
    app.connect("build-finished", lead_to_the_index)
    app.connect("build-finished", check_offline)
    app.add_directive("markdown", Markdown)
    app.add_transform(LinksOutOfTheSite)
