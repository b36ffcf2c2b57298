"""Reads the files of benchmarks and of `mix`: a JSON document, or JSON lines as `kubectl logs` prints them.

Several files become one result: the pods of a Job are one benchmark, benchmarks of one kind of GPU are repeats.
Everything but `read` is pure.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpushare_workload.bench.results.document import SCHEMA, Document, Run


@dataclass(frozen=True, slots=True)
class Pair:
    """One program of `mix`: how many times as long its launches take `beside` another program; None: alone."""

    kind: str
    beside: str | None
    launches_per_second: float
    slowdown: float


@dataclass(frozen=True, slots=True)
class Collected:
    """Everything that was read. `simulated`: the figures say nothing about speed."""

    documents: tuple[Document, ...]
    runs: tuple[Run, ...]
    pairs: tuple[Pair, ...]
    simulated: bool


def read(paths: Iterable[Path]) -> Collected:
    """Raises ValueError naming a file that cannot be used, or the reason why files cannot be combined."""
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
    """The JSON objects in a file. Other lines of a log are skipped."""
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


def combined(documents: Sequence[Document]) -> tuple[Run, ...]:
    """The runs of all documents. Repeats are numbered on, so that runs of two files are never compared with each other.

    Raises ValueError for files of different GPUs, and when the file of a pod is missing.
    """
    products = {str(document.environment.get("gpu", {}).get("product")) for document in documents}
    if len(products) > 1:
        raise ValueError(f"the files are of different GPUs ({', '.join(sorted(products))}): make a report of each")
    groups: dict[str, list[Document]] = {}
    for number, document in enumerate(documents):
        groups.setdefault(document.group.name if document.group else f"file {number}", []).append(document)
    runs: list[Run] = []
    for name, members in groups.items():
        offset = 1 + max((run.repeat for run in runs), default=-1)
        whole = members[0].runs if members[0].group is None else joined(name, members)
        runs.extend(replace(run, repeat=run.repeat + offset) for run in whole)
    return tuple(runs)


def joined(name: str, members: Sequence[Document]) -> tuple[Run, ...]:
    """The runs of a benchmark of which each pod measured a part. Raises ValueError for a missing or a second file."""
    groups = [document.group for document in members if document.group]
    pods = sorted(group.pod for group in groups)
    if pods != list(range(groups[0].pods)):
        there = ", ".join(map(str, pods))
        raise ValueError(f"{name}: a file of each pod from 0 to {groups[0].pods - 1} is needed once; here are {there}")
    parts: dict[tuple[object, ...], list[Run]] = {}
    for document in members:
        for run in document.runs:
            parts.setdefault((run.repeat, run.load, run.mode, run.threads), []).append(run)
    return tuple(_whole(runs) for runs in parts.values() if len(runs) == len(members))


def _whole(parts: Sequence[Run]) -> Run:
    results = [result for run in parts for result in run.results]
    numbered = tuple(replace(result, client=number) for number, result in enumerate(results))
    return replace(
        parts[0],
        clients=len(numbered),
        results=numbered,
        memory_mib={},
        warnings=_distinct(warning for run in parts for warning in run.warnings),
        refused=next((run.refused for run in parts if run.refused), ""),
    )


def _distinct(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values))
