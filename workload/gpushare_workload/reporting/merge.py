"""Several files as one: pods of a Job make one benchmark, benchmarks of one kind of GPU are repeats. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from gpushare_workload.bench.results import Document, Run


def combined(documents: Sequence[Document]) -> tuple[Run, ...]:
    """The runs of all documents, with repeats counted on: those of two files are never compared with each other.

    Raises ValueError where files are of different GPUs, or where a pod's file is missing.
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
    """The runs of one benchmark that each of its pods saw in part. Raises ValueError where one is missing or twice."""
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
