"""The answer of a command, before it is printed. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

Row = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Column:
    """`dropped`: where a terminal is too narrow, columns are left out from the highest number on; 0: never.

    `wide`: shown with -o wide alone. `figures`: sorted from the largest on. `text`: sentences, which stand below their
    row where a terminal is too narrow; the last column. `moving`: changes by itself, so that a watch does not mind it.
    """

    name: str
    dropped: int = 0
    wide: bool = False
    figures: bool = False
    text: bool = False
    moving: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """`empty`: said where there are no rows; where it is empty too, the table is left out. `indent`: in spaces."""

    columns: Sequence[Column]
    rows: Sequence[Row]
    empty: str = ""
    indent: int = 0


@dataclass(frozen=True, slots=True)
class Sentences:
    """Pairs of a lead, such as `Name:  `, and a sentence, which on a terminal is broken and goes on below its start.

    `whole`: lines that people copy, which are not broken.
    """

    lines: Sequence[tuple[str, str]]
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Report:
    """`data`: for -o json and yaml; `names`: for -o name, as kind/name; `code`: the exit status.

    `together`: the parts are one text without empty lines between them. `note`: a sentence about what is not shown, for
    people; it is printed beside the answer, on standard error.
    """

    data: dict[str, Any]
    parts: Sequence[Table | Sentences]
    code: int = 0
    names: Sequence[str] = field(default=())
    together: bool = False
    note: str = ""


class Short(str):
    """A cell that is shown shortened, and in full with -o wide."""

    __slots__ = ("full",)
    full: str

    def __new__(cls, short: str, full: str) -> "Short":
        made = super().__new__(cls, short)
        made.full = full
        return made


LEAST_UUID = len("GPU-") + 8


def short_uuids(uuids: Iterable[str]) -> dict[str, Short]:
    """The shortest prefix of each that no other begins with, of at least LEAST_UUID characters."""
    ordered = sorted(set(uuids))
    shared = [_common(earlier, other) for earlier, other in pairwise(ordered)]
    return {
        uuid: Short(uuid[: max(LEAST_UUID, before + 1, after + 1)], uuid)
        for uuid, before, after in zip(ordered, [0, *shared], [*shared, 0], strict=False)
    }


def _common(first: str, second: str) -> int:
    """How many characters both begin with."""
    pairs = zip(first, second, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))
