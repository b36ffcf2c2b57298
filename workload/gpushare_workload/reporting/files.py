"""Reads what benchmarks and scenarios wrote: a JSON document, or JSON lines as `kubectl logs` gives them."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpushare_workload.bench.results import SCHEMA, Document, Run
from gpushare_workload.reporting.merge import combined


@dataclass(frozen=True, slots=True)
class Pair:
    """One program of `mix`: how many times as long its launches take `beside` another; None: alone."""

    kind: str
    beside: str | None
    launches_per_second: float
    slowdown: float


@dataclass(frozen=True, slots=True)
class Collected:
    """Everything that was read. `simulated`: no figure of it says anything about speed."""

    documents: tuple[Document, ...]
    runs: tuple[Run, ...]
    pairs: tuple[Pair, ...]
    simulated: bool


def read(paths: Iterable[Path]) -> Collected:
    """Raises ValueError naming the file that cannot be used, or why files do not go together."""
    documents: list[Document] = []
    pairs: list[tuple[Pair, bool]] = []
    for path in paths:
        found = 0
        for value in _values(path):
            try:
                if value.get("schema") == SCHEMA:
                    documents.append(Document.from_json(value))
                elif (value.get("scenario"), value.get("event")) == ("mix", "measured"):
                    pairs.append(_pair(value))
                else:
                    continue
            except ValueError as error:
                raise ValueError(f"{path}: {error}") from error
            found += 1
        if not found:
            raise ValueError(f"{path}: holds no result of `bench` or `mix`")
    real = {not document.simulated for document in documents} | {timed for _, timed in pairs}
    if len(real) > 1:
        raise ValueError("some of these files are from a GPU and some from a simulated one: make a report of each")
    return Collected(tuple(documents), combined(documents), tuple(pair for pair, _ in pairs), real == {False})


def _pair(value: Mapping[str, Any]) -> tuple[Pair, bool]:
    try:
        figures = float(value["launches_per_second"]), float(value["slowdown"])
        return Pair(str(value["kind"]), value["beside"], *figures), bool(value["timed"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a whole line of `mix`: {type(error).__name__} {error}") from error


def _values(path: Path) -> Iterator[Mapping[str, Any]]:
    """The JSON objects in a file; a log has other lines too, which are passed over."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot be read: {error}") from error
    for part in (text, *text.splitlines()):
        try:
            value = json.loads(part)
        except ValueError:
            continue
        if isinstance(value, dict):
            yield value
            if part is text:
                return
