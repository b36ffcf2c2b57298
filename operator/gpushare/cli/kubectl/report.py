"""The output of a command: as tables for people, and the same as JSON for programs."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

Row = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Section:
    """`empty`: shown where there are no rows; where it is empty too, the section is left out."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[Row]
    empty: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """`data`: for JSON output; `code`: the exit status."""

    data: dict[str, Any]
    sections: Sequence[Section]
    code: int = 0


def show(report: Report, output: str, console: Console) -> int:
    """`output`: table or json. Returns the exit status."""
    if output == "json":
        console.out(json.dumps(report.data, indent=2), highlight=False)
        return report.code
    for section in report.sections:
        if section.rows:
            console.print(_table(section))
        elif section.empty:
            console.print(f"{section.title}: {section.empty}", markup=False, highlight=False)
    return report.code


def _table(section: Section) -> Table:
    table = Table(title=section.title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    for column in section.columns:
        table.add_column(column, overflow="fold")
    for row in section.rows:
        table.add_row(*(escape(cell) for cell in row))
    return table
