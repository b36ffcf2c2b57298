"""A table as lines of text. Pure.

Guarantees: one line for each row, whatever is in the cells. In a pipe every cell is whole, no cell is empty, and
nothing but spaces is between them. On a terminal no line is longer than the terminal is wide.
"""

import re
from collections.abc import Sequence

from gpushare.cli.kubectl.output.report import Column, Row, Short, Table

GAP = 2
CUT = "…"
LEAST = 8
"""Characters that a cut cell keeps."""
_NUMBER = re.compile(r"-?\d+(\.\d+)?")


def lines(table: Table, *, width: int | None, wide: bool = False, headers: bool = True) -> list[str]:
    """`width`: of the terminal; None: a pipe."""
    shown = [at for at, column in enumerate(table.columns) if wide or not column.wide]
    rows = [[cell_text(row[at], wide) for at in shown] for row in table.rows]
    if headers:
        rows.insert(0, [table.columns[at].name for at in shown])
    columns = [table.columns[at] for at in shown]
    if width is not None:
        rows = _fitted(columns, rows, width - table.indent)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [" " * table.indent + _joined(row, widths) for row in rows]


def ordered(table: Table, by: str) -> Table:
    """Sorted by the column of that name, figures from the largest on. KeyError: there is none."""
    position = {column.name: at for at, column in enumerate(table.columns)}[by.upper()]
    column = table.columns[position]
    rows = sorted(table.rows, key=lambda row: _key(row[position]), reverse=column.figures)
    return Table(table.columns, rows, table.empty, table.indent)


def cell_text(cell: str, wide: bool = False) -> str:
    """One line without control characters, which a tenant's text could bring to the terminal."""
    whole = cell.full if wide and isinstance(cell, Short) else cell
    return plain(whole) or "-"


def plain(text: str) -> str:
    return " ".join("".join(one if one.isprintable() else " " for one in text).split())


def _key(cell: str) -> tuple[int, float, str]:
    number = _NUMBER.match(cell)
    return (1, float(number[0]), cell) if number else (0, 0.0, cell)


def _fitted(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> list[list[str]]:
    """Without the least useful columns, and with the longest cells cut, as far as `width` demands."""
    kept = list(range(len(columns)))
    widths = [max((len(row[at]) for row in rows), default=0) for at in kept]
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


def _total(widths: Sequence[int], kept: Sequence[int]) -> int:
    return sum(widths[at] for at in kept) + GAP * (len(kept) - 1)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + CUT


def _joined(row: Row | Sequence[str], widths: Sequence[int]) -> str:
    return (" " * GAP).join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
