"""A table as lines of text. Pure.

Guarantees: in a pipe a row is one line, every cell is whole, no cell is empty, and nothing but spaces is between them,
whatever is in the cells. On a terminal no line is longer than the terminal is wide, as far as words allow: columns are
left out, sentences go below their row, and at last names are cut in their middle, since their ends differ.
"""

import re
import textwrap
from collections.abc import Sequence

from gpushare.kubectl.output.report import Column, Row, Short, Table

GAP = 2
BELOW = 4
"""How far a sentence below its row is indented."""
EMPTY = "-"
CUT = "…"
MOST_TEXT = 20_000
LEAST = 8
"""Characters that a cut cell keeps."""
_NUMBER = re.compile(r"-?\d+(\.\d+)?")


def lines(table: Table, *, width: int | None, wide: bool = False, headers: bool = True) -> list[str]:
    """`width`: of the terminal; None: a pipe."""
    shown = [at for at, column in enumerate(table.columns) if wide or not column.wide]
    columns = [table.columns[at] for at in shown]
    rows = [[cell_text(row[at], wide) for at in shown] for row in table.rows]
    below = [""] * len(rows)
    room = None if width is None else width - table.indent
    if room is not None and columns[-1].text and _total(_widths(columns, rows), range(len(columns))) > room:
        below = [row.pop() for row in rows]
        columns.pop()
    if headers:
        rows.insert(0, [column.name for column in columns])
        below.insert(0, "")
    if room is not None:
        rows = _fitted(columns, rows, room)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    printed = []
    for row, text in zip(rows, below, strict=True):
        printed.append(" " * table.indent + _joined(row, widths))
        if width is not None and text not in ("", EMPTY):
            indent = " " * (table.indent + BELOW)
            printed += textwrap.wrap(
                text,
                max(width, len(indent) + LEAST),
                initial_indent=indent,
                subsequent_indent=indent,
                break_on_hyphens=False,
            )
    return printed


def ordered(table: Table, by: str) -> Table:
    """Sorted by the column of that name, figures from the largest on. KeyError: there is none."""
    position = {column.name: at for at, column in enumerate(table.columns)}[by.upper()]
    column = table.columns[position]
    rows = sorted(table.rows, key=lambda row: _key(row[position]), reverse=column.figures)
    return Table(table.columns, rows, table.empty, table.indent)


def cell_text(cell: str, wide: bool = False) -> str:
    """One line without control characters, which a tenant's text could bring to the terminal."""
    whole = cell.full if wide and isinstance(cell, Short) else cell
    return plain(whole) or EMPTY


def plain(text: str) -> str:
    return " ".join(_visible(text).split())


def plain_lines(text: str) -> str:
    """Lines without control characters, of MOST_TEXT characters in all: for what is printed beside the answer."""
    shown = text if len(text) <= MOST_TEXT else text[:MOST_TEXT] + CUT
    return "\n".join(_visible(line) for line in shown.split("\n"))


def _visible(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)


def _key(cell: str) -> tuple[int, float, str]:
    number = _NUMBER.match(cell)
    return (1, float(number[0]), cell) if number else (0, 0.0, cell)


def _fitted(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> list[list[str]]:
    """The table without the least useful columns, and with the longest cells cut, as far as `width` demands."""
    kept = list(range(len(columns)))
    widths = _widths(columns, rows)
    while _total(widths, kept) > width:
        least = max(kept, key=lambda at: columns[at].dropped)
        if not columns[least].dropped:
            break
        kept.remove(least)
    while (over := _total(widths, kept) - width) > 0:
        longest = max(kept, key=lambda at: widths[at])
        if widths[longest] <= LEAST:
            break
        others = [widths[at] for at in kept if at != longest]
        widths[longest] = max(LEAST, min(max(others, default=0), widths[longest] - 1), widths[longest] - over)
    return [[_cut(row[at], widths[at]) for at in kept] for row in rows]


def _widths(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[int]:
    return [max([len(column.name), *(len(row[at]) for row in rows)]) for at, column in enumerate(columns)]


def _total(widths: Sequence[int], kept: Sequence[int]) -> int:
    return sum(widths[at] for at in kept) + GAP * (len(kept) - 1)


def _cut(text: str, width: int) -> str:
    if len(text) <= width:
        return text
    end = 0 if " " in text else (width - 1) // 2
    return text[: width - 1 - end] + CUT + text[len(text) - end :]


def _joined(row: Row | Sequence[str], widths: Sequence[int]) -> str:
    return (" " * GAP).join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
