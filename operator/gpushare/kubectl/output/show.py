"""Prints a Report in the form that was asked for."""

import json
import shutil
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import IO

from gpushare.kubectl.output.report import Report, Row, Sentences, Table
from gpushare.kubectl.output.table import lines, ordered, plain, plain_lines

FORMATS = ("wide", "json", "yaml", "name")


class UnknownColumnError(Exception):
    """--sort-by names no column of any table. The text names those that there are."""


@dataclass(slots=True)
class Printer:
    """`width`: of the terminal; None: a pipe. Errors of people's input are raised before anything is printed."""

    format: str = ""
    headers: bool = True
    sort_by: str = ""
    width: int | None = None
    out: IO[str] = field(default_factory=lambda: sys.stdout)
    notes: IO[str] = field(default_factory=lambda: sys.stderr)

    def show(self, report: Report) -> None:
        """Raises UnknownColumnError."""
        for line in self.text(report):
            print(line, file=self.out)
        if self.format in ("", "wide"):
            for part in report.parts:
                if isinstance(part, Table) and not part.rows and part.empty:
                    print(part.empty, file=self.notes)
            if report.note:
                print(plain_lines(report.note), file=self.notes)
        self.out.flush()

    def text(self, report: Report) -> list[str]:
        if self.format == "json":
            return [json.dumps(report.data, indent=2)]
        if self.format == "yaml":
            import yaml  # by this format alone; what is no ASCII is escaped, as in JSON: some of it steers a terminal

            return [yaml.safe_dump(report.data, sort_keys=False, width=10**6).rstrip()]
        if self.format == "name":
            return [plain(name) for name in report.names]
        parts = self._sorted(report.parts)
        blocks = [block for part in parts if (block := self._block(part))]
        between = [] if report.together else [""]
        return [line for at, block in enumerate(blocks) for line in ([*between] if at else []) + block]

    def _sorted(self, parts: Sequence[Table | Sentences]) -> list[Table | Sentences]:
        if not self.sort_by:
            return list(parts)
        wanted = self.sort_by.upper()
        columns = [column.name for part in parts if isinstance(part, Table) for column in part.columns]
        if wanted not in columns:
            known = ", ".join(dict.fromkeys(columns))
            raise UnknownColumnError(f'--sort-by: there is no column "{self.sort_by}"; there are {known}')
        return [
            ordered(part, wanted)
            if isinstance(part, Table) and wanted in {known_column.name for known_column in part.columns}
            else part
            for part in parts
        ]

    def _block(self, part: Table | Sentences) -> list[str]:
        if isinstance(part, Sentences):
            if part.whole:
                return [f"{lead}{plain(text)}".rstrip() for lead, text in part.lines]
            return [line for lead, text in part.lines for line in self._broken(lead, plain(text))]
        if not part.rows:
            return []
        return lines(part, width=self.width, wide=self.format == "wide", headers=self.headers)

    def _broken(self, lead: str, text: str) -> list[str]:
        """A sentence after its lead; on a terminal broken between words, below its first one."""
        if self.width is None or len(lead) + len(text) <= self.width:
            return [f"{lead}{text}".rstrip()]
        return textwrap.wrap(
            text,
            self.width,
            initial_indent=lead,
            subsequent_indent=" " * len(lead),
            break_long_words=False,
            break_on_hyphens=False,
        )


def terminal_width(stream: IO[str]) -> int | None:
    """The width of the terminal that `stream` is; None where it is none."""
    return shutil.get_terminal_size().columns if stream.isatty() else None


def new_rows(before: Report, now: Report) -> Report:
    """`now` with those rows alone that `before` did not have: what a watch prints next."""
    known = {_still(part, row) for part in before.parts if isinstance(part, Table) for row in part.rows}
    parts = [
        Table(part.columns, [row for row in part.rows if _still(part, row) not in known], indent=part.indent)
        for part in now.parts
        if isinstance(part, Table)
    ]
    return Report(now.data, parts, now.code, [name for name in now.names if name not in before.names], now.together)


def _still(table: Table, row: Row) -> tuple[tuple[str, str], ...]:
    """What of a row changes only where something happened, by column."""
    cells = zip(table.columns, row, strict=True)
    return tuple((column.name, cell) for column, cell in cells if not column.moving)
