"""The HTML of the page. Guarantees: it is one file without scripts, needs no network, and escapes all text."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from io import BytesIO

from matplotlib.figure import Figure

from gpushare_workload.reporting.texts import Headline

STYLE = """
:root { color-scheme: light; --text: #1b2430; --soft: #56606d; --line: #d5dae1; --tint: #f5f7fa; --accent: #005a8f; }
* { box-sizing: border-box; }
body { margin: 0; background: #fff; color: var(--text); font: 16px/1.55 system-ui, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 48px 24px 96px; }
h1 { font-size: 30px; line-height: 1.2; margin: 0 0 6px; letter-spacing: -0.01em; }
h2 { font-size: 20px; margin: 56px 0 4px; letter-spacing: -0.005em; }
p { margin: 6px 0 14px; max-width: 76ch; }
.soft { color: var(--soft); }
.note { border-left: 4px solid #b45309; background: #fff8ed; padding: 10px 16px; margin: 16px 0; max-width: none; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(300px, 100%), 1fr)); gap: 14px;
  margin: 28px 0 8px; }
.card { border: 1px solid var(--line); border-radius: 10px; padding: 16px 18px 14px; background: var(--tint); }
.card b { display: block; font-size: 34px; line-height: 1.1; color: var(--accent); font-variant-numeric: tabular-nums; }
.card span { font-size: 14px; color: var(--soft); display: block; margin-top: 6px; line-height: 1.4; }
figure { margin: 18px 0 0; overflow-x: auto; }
figure img { width: 100%; min-width: 680px; max-width: 980px; height: auto; display: block; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 8px; margin-top: 12px; }
table { border-collapse: collapse; font-size: 13.5px; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: 6px 12px; text-align: right; white-space: nowrap; border-bottom: 1px solid #e9ecf0; }
th { background: var(--tint); color: var(--soft); font-weight: 600; }
tr:last-child td { border-bottom: 0; }
.left, th:first-child, td:first-child { text-align: left; }
.facts td { text-align: left; white-space: normal; }
.facts td:first-child { color: var(--soft); width: 260px; }
summary { cursor: pointer; color: var(--accent); margin-top: 14px; font-weight: 600; }
pre { background: var(--tint); border: 1px solid var(--line); border-radius: 8px; padding: 12px 16px; overflow-x: auto;
      font-size: 13px; }
@media (max-width: 600px) { main { padding: 28px 16px 64px; } .card b { font-size: 26px; } h2 { margin-top: 40px; } }
@media print { main { padding: 0; } h2 { break-after: avoid; } figure, .card { break-inside: avoid; } }
"""


@dataclass(frozen=True, slots=True)
class PageSection:
    """`text` says how to read the plot; `alternative` describes the plot for readers who cannot see it."""

    title: str
    text: str
    alternative: str = ""
    plot: Figure | None = None
    body: str = ""


def page(
    title: str, subtitle: str, notes: Sequence[str], cards: Sequence[Headline], sections: Sequence[PageSection]
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
        parts += [f'<div class="card"><b>{escape(it.figure)}</b><span>{escape(it.text)}</span></div>' for it in cards]
        parts.append("</div>")
    for section in sections:
        parts.append(f'<section><h2>{escape(section.title)}</h2><p class="soft">{escape(section.text)}</p>')
        if section.plot is not None:
            parts.append(f'<figure><img alt="{escape(section.alternative)}" src="{picture(section.plot)}"></figure>')
        parts.append(f"{section.body}</section>")
    parts.append("</main></body></html>\n")
    return "\n".join(parts)


def picture(figure: Figure) -> str:
    """A data URL of the figure as SVG."""
    buffer = BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    return f"data:image/svg+xml;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def table(head: Sequence[str], lines: Sequence[Sequence[str]], left: int = 1) -> str:
    """The first `left` columns are words, the others are figures."""

    def row(cells: Sequence[str], tag: str) -> str:
        marks = [' class="left"' if place < left else "" for place in range(len(cells))]
        inner = "".join(f"<{tag}{mark}>{escape(cell)}</{tag}>" for mark, cell in zip(marks, cells, strict=True))
        return f"<tr>{inner}</tr>"

    body = "".join(row(line, "td") for line in lines)
    return f'<div class="scroll"><table><thead>{row(head, "th")}</thead><tbody>{body}</tbody></table></div>'


def folded(summary: str, body: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>{body}</details>"


def facts(lines: Sequence[tuple[str, str]]) -> str:
    rows = "".join(f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in lines)
    return f'<div class="scroll"><table class="facts"><tbody>{rows}</tbody></table></div>'


def code(lines: Sequence[str]) -> str:
    return f"<pre>{escape(chr(10).join(lines))}</pre>"
