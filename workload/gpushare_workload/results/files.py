"""Reads the files of benchmarks, `mix` and `overlap`: a JSON document, or JSON lines as `kubectl logs` prints them.

Several files become one result: the pods of a Job are one benchmark, benchmarks of one kind of GPU are repeats.
Everything but `read` is pure.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from gpushare.kubectl.rules.trial.spread import Spread
from gpushare_workload.results.document import SCHEMA, Document, Run


@dataclass(frozen=True, slots=True, order=True)
class Setting:
    """How processes shared the GPU: `sharing` is time-slicing or mps; `threads`: percent of the SMs of each."""

    sharing: str
    threads: float


@dataclass(frozen=True, slots=True)
class Pair:
    """Two programs of `mix` beside each other. `combined`: the sum of rate ÷ rate alone without a limit."""

    setting: Setting
    kinds: tuple[str, ...]
    combined: Spread
    verdict: str
    repeats: int | None = None


@dataclass(frozen=True, slots=True)
class Overlap:
    """One line of `overlap`: processes that ran the same kernels alone (1) or at once."""

    setting: Setting
    grid: str
    depth: int
    processes: int
    rate: Spread
    """Launches per second of all of them together."""
    at_once: Spread
    """Processes with a kernel on the GPU at the same moment, over the time in which any had one."""
    running_percent: Spread | None
    """The time in which any process had one, of the time with records of all; None: a file of an earlier version."""
    sms_of_each: tuple[int, ...]
    sms_of_several: int
    repeats: int | None = None


@dataclass(frozen=True, slots=True)
class Timeline:
    """Pieces of kernels: (process, from, to), in µs."""

    setting: Setting
    grid: str
    depth: int
    processes: int
    pieces: tuple[tuple[int, float, float], ...]


Line = TypeVar("Line", Pair, Overlap, Timeline)


@dataclass(frozen=True, slots=True)
class Collected:
    """Everything that was read. `simulated`: the figures say nothing about speed."""

    documents: tuple[Document, ...]
    runs: tuple[Run, ...]
    pairs: tuple[Pair, ...]
    overlaps: tuple[Overlap, ...]
    timelines: tuple[Timeline, ...]
    simulated: bool


def read(paths: Iterable[Path]) -> Collected:
    """Raises ValueError naming a file that cannot be used, or the reason why files cannot be combined."""
    documents: list[Document] = []
    lines: list[Pair | Overlap | Timeline] = []
    timed: set[bool] = set()
    for path in paths:
        count = 0
        for value in _values(path):
            parse = LINES.get((value.get("scenario"), value.get("event")))
            try:
                if str(value.get("schema", "")).startswith(FAMILY):
                    documents.append(Document.from_json(value))
                    timed.add(not documents[-1].simulated)
                elif parse is not None:
                    parsed = _line(parse, value)
                    lines += [parsed] if parsed is not None else []
                    timed.add(bool(value["timed"]))
                else:
                    continue
            except ValueError as error:
                raise ValueError(f"{path}: {error}") from error
            count += 1
        if not count:
            raise ValueError(f"{path}: holds no result of `bench`, `mix` or `overlap`")
    if len(timed) > 1:
        raise ValueError("some of these files are from a GPU and some from a simulated one: make a report of each")
    return Collected(
        tuple(documents),
        combined(documents),
        tuple(line for line in lines if isinstance(line, Pair)),
        tuple(line for line in lines if isinstance(line, Overlap)),
        tuple(line for line in lines if isinstance(line, Timeline)),
        timed == {False},
    )


def _line(parse: Callable[[Mapping[str, Any]], Line], value: Mapping[str, Any]) -> Line:
    try:
        return parse(value)
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a whole line of `{value['scenario']}`: {type(error).__name__} {error}") from error


def _setting(value: Mapping[str, Any]) -> Setting:
    return Setting(str(value["sharing"]), float(value["threads_percent"]))


def _repeats(value: Mapping[str, Any]) -> int | None:
    """The number of repeats; None where the line does not say."""
    return int(value["repeats"]) if "repeats" in value else None


def _pair(value: Mapping[str, Any]) -> Pair | None:
    """None of one that no GPU ran: it has no figure of speed."""
    if value["combined"] is None:
        return None
    return Pair(
        _setting(value),
        tuple(value["kinds"]),
        Spread.of_fields(value, "combined"),
        str(value["verdict"]),
        _repeats(value),
    )


def _overlap(value: Mapping[str, Any]) -> Overlap:
    return Overlap(
        _setting(value),
        str(value["grid"]),
        int(value["depth"]),
        int(value["processes"]),
        Spread.of_fields(value, "launches_per_second"),
        Spread.of_fields(value, "at_once"),
        Spread.of_fields(value, "any_running_percent") if "any_running_percent" in value else None,
        tuple(int(number) for number in value["sms_of_each"]),
        int(value["sms_of_several"]),
        _repeats(value),
    )


def _timeline(value: Mapping[str, Any]) -> Timeline:
    pieces = tuple((int(index), float(start), float(end)) for index, start, end in value["microseconds"])
    return Timeline(_setting(value), str(value["grid"]), int(value["depth"]), int(value["processes"]), pieces)


LINES: Mapping[tuple[Any, Any], Callable[[Mapping[str, Any]], Any]] = {
    ("mix", "pair"): _pair,
    ("overlap", "measured"): _overlap,
    ("overlap", "timeline"): _timeline,
}
"""The lines of scenarios that the report shows, by scenario and event."""
FAMILY = SCHEMA.rpartition("/")[0]
"""A file of another version of the schema is refused with that reason."""


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
