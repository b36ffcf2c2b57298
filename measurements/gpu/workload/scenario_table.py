"""What scenarios of the workload say on each product, from measurements/results/PRODUCT/workload*.json, as tables."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpushare.kubectl.rules.trial.spread import Spread
from measurements.gpu.programs.figures import PRODUCTS
from tests.page_tables import head_of, line_of

Lines = list[dict[str, Any]]
"""The events of one part of measurements/gpu/workload/scenarios.py."""


@dataclass(frozen=True, slots=True)
class Figure:
    """`name` in the one line of `part` that has all of `where`, or with `of_runs` in that of each run. `latency.p99_ms`
    is a field of a field.
    """

    part: str
    name: str
    where: Mapping[str, Any]
    form: str = ".2f"
    of_runs: bool = False

    def text(self, measured: Mapping[str, Lines]) -> str:
        """KeyError, ValueError: it was not measured, or not on a GPU."""
        lines = [
            line for line in measured[self.part] if all(_at(line, name) == value for name, value in self.where.items())
        ]
        if any(line.get("timed") is False for line in lines):
            raise ValueError(f"{self.part}: figures of a simulated GPU are no results")
        if self.of_runs:
            return Spread.of([self._value(line) for line in lines]).text(self.form)
        [line] = lines
        if f"{self.name}_least" in line:
            return Spread.of_fields(line, self.name).text(self.form)
        return format(self._value(line), self.form)

    def _value(self, line: Mapping[str, Any]) -> float:
        if (value := _at(line, self.name)) is None:
            raise KeyError(f"{self.part} has no {self.name}")
        return float(value)


def _at(line: Mapping[str, Any], name: str) -> Any:
    """None: it is not there."""
    value: Any = line
    for step in name.split("."):
        value = value.get(step) if isinstance(value, Mapping) else None
    return value


ONCE_STARTED = "tasks_per_second_warm"
PIPELINE: Mapping[str, Any] = {"form": "pipeline"}
SERVED: Mapping[str, Any] = {"event": "measured"}
ROLES = {
    "inference": {"role": "inference", "beside": ["training", "preprocessing"]},
    "training": {"role": "training", "beside": ["inference", "preprocessing"]},
    "preparation": {"role": "preprocessing", "beside": ["inference", "training"]},
}
HOW = {
    "in time slices": ("trio_in_time_slices", {}),
    "under MPS": ("trio", {"training_threads_percent": 100.0}),
    "under MPS, training at 50 %": ("trio", {"training_threads_percent": 50.0}),
}


def _graph(part: str) -> dict[str, Figure]:
    titles = {"launched one by one": "launches", "as a graph": "graph"}
    return {title: Figure(part, "us_per_kernel", {"mode": mode}) for title, mode in titles.items()}


def _pipeline(filtered: str) -> dict[str, Figure]:
    titles = {"from pageable memory": "pageable", "from pinned memory, with copies beside kernels": "overlapped"}
    return {
        title: Figure("pipeline", "times_as_fast", {**PIPELINE, "filter": filtered, "copies": copies}, ".1f")
        for title, copies in titles.items()
    }


def _halos(part: str) -> dict[str, Figure]:
    titles = {"through host memory": "host", "by CUDA IPC": "ipc"}
    return {title: Figure(part, "times_as_fast", {"halos": halos}) for title, halos in titles.items()}


def _beside(role: str, name: str) -> dict[str, Figure]:
    return {title: Figure(part, name, {**ROLES[role], **where}) for title, (part, where) in HOW.items()}


Table = Mapping[str, Mapping[str, Figure]]
"""Figures by the cases of a question."""
TASKS: Table = {
    "short tasks per second, once started": {
        title: Figure("pool_warm", ONCE_STARTED, {"mode": mode}, ",.0f")
        for title, mode in {
            "a pool of 8 processes": "pool", "streams of one process": "streams", "one batch": "batched",
        }.items()
    },
    "8 small kernels on 8 streams, × one stream": {
        title: Figure(part, "times_as_fast", {"what": "kernels", "streams": 8})
        for title, part in {
            "without MPS": "streams_of_small_kernels", "under MPS": "streams_of_small_kernels_under_mps",
        }.items()
    },
    "µs for each of 100 small kernels": _graph("graph"),
    "of 4 processes under MPS": _graph("graph_in_4_processes"),
    "of 4 processes in time slices": _graph("graph_in_4_time_slices"),
}  # fmt: skip
PIPELINES: Table = {
    "a pipeline of vector additions, × one process": _pipeline("add"),
    "a pipeline that normalises, × one process": _pipeline("normalise"),
    "a pipeline whose check takes the CPU longest, × one process": {
        f"{number} that check": Figure("pipeline_of_1_to_16", "times_as_fast",
                                       {**PIPELINE, "workers.finish": number}, ".1f")
        for number in (1, 4, 8, 16)
    },
    "a grid of 4,096², 2 processes, × one with a quarter of the SMs too": _halos("refine_a_larger_grid"),
    "the same, all with all SMs": _halos("refine_a_larger_grid_uncapped"),
}  # fmt: skip
SERVICES: Table = {
    "inference beside training and preparation, p50 in ms": {
        "alone": Figure("trio_in_time_slices", "p50_ms", {"role": "inference", "beside": []}),
        **_beside("inference", "p50_ms"),
    },
    "its p99": {
        "alone": Figure("trio_in_time_slices", "p99_ms", {"role": "inference", "beside": []}),
        **_beside("inference", "p99_ms"),
    },
    "what training keeps of its speed": _beside("training", "kept"),
    "what preparation keeps": _beside("preparation", "kept"),
    "a service of 200 requests/s under MPS, alone": {
        "p50, ms": Figure("serve", "latency.p50_ms", SERVED, of_runs=True),
        "p99, ms": Figure("serve", "latency.p99_ms", SERVED, of_runs=True),
    },
}  # fmt: skip


TABLES: Mapping[str, Table] = {"tasks": TASKS, "pipelines": PIPELINES, "services": SERVICES}


def scenarios(results: Path) -> dict[str, list[str]]:
    """The lines of each table, by its name. KeyError, ValueError: something of it was not measured."""
    measured = [parts(results / product) for product in PRODUCTS]
    return {name: list(_lines(table, measured)) for name, table in TABLES.items()}


def _lines(table: Table, measured: Sequence[Mapping[str, Lines]]) -> Iterator[str]:
    yield from head_of("", "", *(product.upper() for product in PRODUCTS))
    for title, figures in table.items():
        first = title
        for case, figure in figures.items():
            yield line_of(first, case, *(figure.text(lines) for lines in measured))
            first = ""


def parts(folder: Path) -> dict[str, Lines]:
    """The events of parts by name, where as expected; of one that was measured more than once, the last."""
    stored = [json.loads(file.read_text()) for file in sorted(folder.glob("workload*.json"))]
    stored.sort(key=lambda stored_run: str(stored_run["environment"]["date"]))
    named = (item for stored_run in stored for item in stored_run.items())
    return {
        name: part["events"]
        for name, part in named
        if isinstance(part, Mapping) and "events" in part and part["as_expected"]
    }
