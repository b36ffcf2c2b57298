"""The texts of the page beside the plots: headlines, tables, the environment. Pure: values in, rows of text out."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpushare_workload.backend.work import LoadKind
from gpushare_workload.bench.plan import SharingMode
from gpushare_workload.bench.results.document import Document
from gpushare_workload.bench.results.statistics import Spread
from gpushare_workload.bench.results.summary import Row, find
from gpushare_workload.reporting.files import Pair
from gpushare_workload.reporting.selection import compared_clients, times
from gpushare_workload.reporting.style import GRIDS, KINDS, MODES

HEAD = (
    "Load", "Clients", "Mode", "Threads", "Kernels/s", "× time-slicing", "× one client", "Jain", "p50 µs", "p90 µs",
    "p99 µs", "worst client’s p99 µs", "MiB each", "Repeats",
)  # fmt: skip
SPEED = ("Kernels/s", "× time-slicing", "× one client", "Jain", "p50 µs", "p90 µs", "p99 µs", "worst client’s p99 µs")
"""Columns that are left out for a simulated GPU."""


@dataclass(frozen=True, slots=True)
class Headline:
    """A figure in large type, and what it is."""

    figure: str
    text: str


def headlines(rows: Sequence[Row]) -> list[Headline]:
    """MPS against time-slicing with as many clients: medians over the repeats, of compute if it was measured."""
    found = []
    loads = list(dict.fromkeys(row.case.load for row in rows))
    first = [load for load in loads if load.kind is LoadKind.COMPUTE] or loads
    for load in first:
        clients = compared_clients(rows, load)
        row = find(rows, load, clients, SharingMode.MPS) if clients else None
        slicing = find(rows, load, clients, SharingMode.TIME_SLICING) if clients else None
        if row is not None and slicing is not None and row.of_time_slicing is not None and clients and clients > 1:
            what = f"{KINDS[load.kind].lower()}, {GRIDS[load.grid]}: {clients} clients under MPS against time-slicing"
            tails = [f"{it.percentile_us(99):,.0f} µs" for it in (row, slicing)]
            text = f"{what}; p99 {tails[0]} instead of {tails[1]}"
            found.append(Headline(times(row.of_time_slicing.median), text))
    return found


def figures(rows: Sequence[Row], simulated: bool) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """(head, lines), without the columns of speed for a simulated GPU."""
    kept = [place for place, name in enumerate(HEAD) if not simulated or name not in SPEED]
    lines = [_line(row) for row in rows]
    return tuple(HEAD[place] for place in kept), [tuple(line[place] for place in kept) for line in lines]


def _line(row: Row) -> tuple[str, ...]:
    case = row.case
    return (
        f"{KINDS[case.load.kind]}, {GRIDS[case.load.grid]}",
        str(case.clients),
        MODES[case.mode],
        "–" if case.threads is None else f"{case.threads:.4g} %",
        _spread(row.total, ",.0f"),
        _spread(row.of_time_slicing, ".2f"),
        _spread(row.of_one_client, ".2f"),
        _spread(row.fairness, ".3f"),
        *(f"{row.percentile_us(percent):,.0f}" for percent in (50, 90, 99)),
        f"{row.worst_p99_us:,.0f}",
        "–" if row.memory_mib is None else f"{row.memory_mib.median:,.0f}",
        str(row.repeats),
    )


def _spread(spread: Spread | None, form: str) -> str:
    """The median, and the extremes if they differ from it in this form."""
    if spread is None:
        return "–"
    median, least, largest = (format(value, form) for value in (spread.median, spread.least, spread.largest))
    return median if least == largest else f"{median} ({least}–{largest})"


def pairs(found: Sequence[Pair]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    head = ("Program", "Beside", "Launches/s", "Times as long as alone")
    return head, [
        (pair.kind, pair.beside or "nothing", f"{pair.launches_per_second:,.1f}", f"{pair.slowdown:.2f}")
        for pair in found
    ]


def environment(documents: Sequence[Document]) -> list[tuple[str, str]]:
    """(name, value) of everything in the files' environments; all values if the files differ."""
    values: dict[str, dict[str, None]] = {}
    for document in documents:
        for name, value in _flat("", {"backend": document.backend, **document.environment}):
            values.setdefault(name, {})[value] = None
    return [(name, ", ".join(each)) for name, each in values.items()]


def _flat(prefix: str, value: dict[str, Any]) -> list[tuple[str, str]]:
    lines = []
    for name, part in value.items():
        if isinstance(part, dict):
            lines += _flat(f"{prefix}{name} ", part)
        elif part is not None:
            lines.append((f"{prefix}{name}".replace("_", " "), f"{part:.4g}" if isinstance(part, float) else str(part)))
    return lines


def commands(documents: Sequence[Document]) -> list[str]:
    """The commands that repeat the measurements."""
    lines = []
    for document in documents:
        words = ["gpushare-workload", *document.command[1:]]
        lines.append(shlex.join(words))
    return list(dict.fromkeys(lines))


def cautions(documents: Sequence[Document], rows: Sequence[Row]) -> list[str]:
    """What a reader must know about the figures: one sentence each."""
    sentences = [
        f"A benchmark did not run to its end ({one.ended}): its figures are incomplete."
        for one in documents
        if one.ended
    ]
    refused = [run.refused for document in documents for run in document.runs if run.refused]
    if refused:
        sentences.append(f"{len(refused)} runs are left out, since their figures cannot be true: {refused[0]}.")
    warned = dict.fromkeys(warning for row in rows for warning in row.warnings)
    return [*sentences, *(f"While measuring: {warning}." for warning in warned)]
