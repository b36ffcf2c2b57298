"""The HTML of the page. Guarantees: it is one file without scripts, needs no network, and escapes all text."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from io import BytesIO

from matplotlib.figure import Figure

from gpushare_workload.reporting.sheet import STYLE
from gpushare_workload.reporting.verdicts import HEAD, WORDS, LoadVerdict

FEW = 4
"""Columns of a table that fits on a narrow page."""


@dataclass(frozen=True, slots=True)
class PageSection:
    """`text` says how to read the plot; `alternative` describes the plot for readers who cannot see it.

    `name` is the section's place in the address of the page; a section with a plot needs one.
    """

    title: str
    text: str
    name: str = ""
    alternative: str = ""
    plot: Figure | None = None
    body: str = ""


def page(
    title: str, subtitle: str, notes: Sequence[str], cards: Sequence[tuple[str, str]], sections: Sequence[PageSection]
) -> str:
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">',
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body><main>",
        f'<h1>{escape(title)}</h1><p class="soft">{escape(subtitle)}</p>',
        *(f'<p class="note">{escape(note)}</p>' for note in notes),
    ]
    if cards:
        parts.append('<div class="cards">')
        for figure, text in cards:
            parts.append(f'<div class="card"><b>{escape(figure)}</b><span>{escape(text)}</span></div>')
        parts.append("</div>")
    for section in sections:
        place = f' id="{escape(section.name)}"' if section.name else ""
        parts.append(f'<section{place}><h2>{escape(section.title)}</h2><p class="soft">{escape(section.text)}</p>')
        if section.plot is not None:
            parts.append(opening(section.name, section.alternative, section.plot))
        parts.append(f"{section.body}</section>")
    parts.append("</main></body></html>\n")
    return "\n".join(parts)


def opening(name: str, alternative: str, plot: Figure) -> str:
    """A picture whose link opens it in the whole window, and closes it. It needs no script, and no second copy.

    A link to the picture itself would not do: browsers open no data URL by a link.
    """
    place = escape(name)
    return (
        f'<figure id="{place}-large"><a class="close" href="#{place}">Close</a>'
        f'<a class="open" href="#{place}-large"><img alt="{escape(alternative)}" src="{picture(plot)}">'
        f"<span>Open larger</span></a></figure>"
    )


def picture(figure: Figure) -> str:
    """A data URL of the figure as SVG."""
    buffer = BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    return f"data:image/svg+xml;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def table(head: Sequence[str], lines: Sequence[Sequence[str]], left: int = 1) -> str:
    """The first `left` columns are words, the others are figures.

    On a narrow page a table of few columns fits with its cells broken; one of many scrolls in its own box.
    """
    few = len(head) <= FEW

    def row(cells: Sequence[str], tag: str) -> str:
        inner = "".join(
            f"<{tag}{_left(place, left)}>{_unbroken(cell) if few else escape(cell)}</{tag}>"
            for place, cell in enumerate(cells)
        )
        return f"<tr>{inner}</tr>"

    body = "".join(row(line, "td") for line in lines)
    mark = ' class="few"' if few else ""
    return f'<div class="scroll"><table{mark}><thead>{row(head, "th")}</thead><tbody>{body}</tbody></table></div>'


def _left(place: int, left: int) -> str:
    return ' class="left"' if place < left else ""


def verdicts(load_verdicts: Sequence[LoadVerdict]) -> str:
    """A table with a group of lines for each load; on a narrow page a card for each, with its heads in it."""
    head = "".join(f"<th{_left(place, WORDS)}>{escape(cell)}</th>" for place, cell in enumerate(HEAD))
    groups = "".join(f"<tbody>{_group(load_verdict)}</tbody>" for load_verdict in load_verdicts)
    return f'<table class="groups"><thead><tr>{head}</tr></thead>{groups}</table>'


def _group(load_verdict: LoadVerdict) -> str:
    """The words in the first line, over all of them."""
    names, span = HEAD[WORDS:], f'rowspan="{len(load_verdict.lines)}"'
    words = (
        f'<th scope="rowgroup" class="left" {span}>{escape(load_verdict.load)}</th>'
        f'<td class="left words" {span}>{escape(load_verdict.verdict)}</td>'
    )
    lines = [
        "".join(
            f'<td data-head="{escape(name)}">{_unbroken(cell)}</td>' for name, cell in zip(names, line, strict=True)
        )
        for line in load_verdict.lines
    ]
    return "".join(f"<tr>{words if not number else ''}{line}</tr>" for number, line in enumerate(lines))


def _unbroken(cell: str) -> str:
    """A cell that breaks between words alone: not in a spread, and not in an option."""
    return " ".join(f"<span>{escape(word)}</span>" for word in cell.split())


def folded(summary: str, body: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>{body}</details>"


def facts(lines: Sequence[tuple[str, str]]) -> str:
    rows = "".join(f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in lines)
    return f'<div class="scroll"><table class="facts"><tbody>{rows}</tbody></table></div>'


def code(lines: Sequence[str]) -> str:
    """A long line goes on below its beginning, so that each is seen as one. The text has its end, for a copy."""
    return "<pre>" + "".join(f"<code>{_unbroken(line)}\n</code>" for line in lines) + "</pre>"
