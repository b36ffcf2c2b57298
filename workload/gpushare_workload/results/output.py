"""The output at the end of a benchmark: a table for people, CSV for spreadsheets, JSON for `report`."""

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpushare.kubectl.rules.trial.rows import aligned
from gpushare.kubectl.rules.trial.spread import Spread
from gpushare_workload.results.summary import Row

HEAD = (
    "kind",
    "grid",
    "depth",
    "clients",
    "mode",
    "kernels/s",
    "× time-slicing",
    "× one client",
    "Jain",
    "p50 µs",
    "p99 µs",
    "MiB",
)


def table(rows: Sequence[Row], simulated: bool) -> str:
    """Columns of text, without figures of speed for a simulated GPU."""
    return aligned([HEAD, *(_cells(row, simulated) for row in rows)], words=5)


def _cells(row: Row, simulated: bool) -> tuple[str, ...]:
    case = row.case
    depth = f"{case.load.depth}{' graph' if case.load.graph else ''}"
    name = (case.load.kind.value, case.load.grid.value, depth, str(case.clients), case.label)
    memory = "–" if row.memory_mib is None else f"{row.memory_mib.median:.0f}"
    if simulated:
        return (*name, *("–" for _ in range(6)), memory)
    speed = (f"{row.total.median:,.0f}", _ratio(row.of_time_slicing), _ratio(row.of_one_client))
    latency = (f"{row.percentile_us(50):,.0f}", f"{row.percentile_us(99):,.0f}")
    return (*name, *speed, f"{row.fairness.median:.3f}", *latency, memory)


def _ratio(spread: Spread | None) -> str:
    return "–" if spread is None else f"{spread.median:.2f} ({spread.least:.2f}–{spread.largest:.2f})"


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """One line for each case; a field is empty if its figure was not measured."""
    lines = [row.as_json() for row in rows]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(lines[0]) if lines else [])
        writer.writeheader()
        writer.writerows(lines)


def write_json(target: Path, document: Mapping[str, Any]) -> None:
    """Writes the whole file or nothing."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    part.write_text(json.dumps(document) + "\n")
    part.replace(target)
