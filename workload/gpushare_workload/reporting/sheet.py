"""The style sheet of the page. Nothing is wider than the page at any width: what does not fit scrolls in its own box.

A narrow page has its own rules: verdicts are cards, and the first column of a table stays while the others scroll.
A picture is as wide as the page; opened by its link it covers the window at a size that can be read.
"""

NARROW = "max-width: 700px"

EVERYWHERE = """
:root { color-scheme: light; --text: #1b2430; --soft: #56606d; --line: #d5dae1; --tint: #f5f7fa; --accent: #005a8f; }
* { box-sizing: border-box; }
body { margin: 0; background: #fff; color: var(--text); font: 16px/1.55 system-ui, "Segoe UI", Roboto, sans-serif;
  overflow-wrap: break-word; }
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
a, summary { color: var(--accent); font-weight: 600; }
summary { cursor: pointer; margin-top: 14px; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 8px; margin-top: 12px; }
table { border-collapse: collapse; font-size: 13.5px; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: 6px 12px; text-align: right; white-space: nowrap; border-bottom: 1px solid #e9ecf0; }
thead th { background: var(--tint); color: var(--soft); font-weight: 600; white-space: normal; }
tbody:last-child > tr:last-child > * { border-bottom: 0; }
.left, th:first-child, td:first-child { text-align: left; }
.facts td { text-align: left; white-space: normal; overflow-wrap: anywhere; }
.facts td:first-child { color: var(--soft); width: 260px; }
.groups td[data-head] { text-align: right; }
.groups tbody:not(:last-child) > tr:last-child > td, .groups tbody:not(:last-child) th,
.groups tbody:not(:last-child) .words { border-bottom-color: var(--line); }
.groups tbody:last-child > tr > .words, .groups tbody:last-child > tr > th, .groups tr:not(:last-child) > [data-head] {
  border-bottom: 0; }
.groups span, .few span, pre span { white-space: nowrap; }
.groups tbody th { font-weight: 600; vertical-align: top; }
.groups tbody .words { font-weight: 400; white-space: normal; vertical-align: top; }
pre { background: var(--tint); border: 1px solid var(--line); border-radius: 8px; padding: 12px 16px; font-size: 13px;
  white-space: pre-wrap; overflow-x: auto; }
pre code { display: block; padding-left: 4ch; text-indent: -4ch; }
"""

PICTURES = """
figure { margin: 18px 0 0; }
figure img { width: 100%; max-width: 980px; height: auto; display: block; cursor: zoom-in; }
figure .open { display: inline-block; font-size: 14px; max-width: 100%; }
figure .close { display: none; }
@media screen {
  html:has(figure:target) { overflow: hidden; }
  figure:target { position: fixed; inset: 0; z-index: 1; margin: 0; padding: 0 12px 12px; background: #fff;
    overflow: auto; }
  figure:target .open { display: block; width: max(100%, 900px); max-width: none; pointer-events: none; }
  figure:target img { max-width: none; cursor: auto; }
  figure:target .open span { display: none; }
  figure:target .close { display: block; position: sticky; top: 0; left: 0; width: max-content; padding: 12px 16px;
    background: #fff; }
}
"""

WHEN_NARROW = """
main { padding: 28px 16px 64px; }
h2 { margin-top: 40px; }
.card b { font-size: 26px; }
th, td { padding: 6px 10px; }
.scroll th:first-child, .scroll td:first-child { position: sticky; left: 0; background: #fff; white-space: normal;
  min-width: 112px; max-width: 140px; border-right: 1px solid var(--line); }
.scroll thead th:first-child { background: var(--tint); }
.facts tr, .facts td, .facts td:first-child { display: block; position: static; width: auto; max-width: none;
  border-right: 0; }
.facts td:first-child { border-bottom: 0; padding-bottom: 0; }
.facts td:last-child { padding-top: 0; }
.few { font-size: 12.5px; }
.few th, .few td { white-space: normal; padding: 5px 6px; }
.scroll .few th:first-child, .scroll .few td:first-child { min-width: 0; }
.groups { display: block; }
.groups thead { display: none; }
.groups tbody { display: grid; grid-template-columns: auto auto 1fr 1fr; border: 1px solid var(--line);
  border-radius: 8px; margin-top: 12px; padding: 10px 4px 6px; }
.groups tr { display: contents; }
.groups tbody th, .groups tbody td, .groups td[data-head] { border: 0 !important; padding: 3px 8px; text-align: left;
  white-space: normal; }
.groups tbody th, .groups tbody .words { grid-column: 1 / -1; font-size: 15px; }
.groups tr:first-child td[data-head]::before { content: attr(data-head); display: block; color: var(--soft);
  font-size: 12px; }
"""

STYLE = f"""{EVERYWHERE}{PICTURES}
@media screen and ({NARROW}) {{{WHEN_NARROW}}}
@media print {{ main {{ padding: 0; }} h2 {{ break-after: avoid; }} figure, .card {{ break-inside: avoid; }}
  figure .open span {{ display: none; }} }}
"""
