"""Reads the published trace of a GPU cluster: its nodes, and its pods with what they asked for and when they ran.

The files are `openb_node_list_gpu_node.csv` and `openb_pod_list_default.csv` of Alibaba's GPU cluster of 2023; their
README says what the columns mean. No line of them is in this repository.
"""

import csv
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

PODS, NODES = "openb_pod_list_default.csv", "openb_node_list_gpu_node.csv"
COMMIT = "7a6c496e4f4b6ce6150be8f881cb051bf2abff42"
"""The commit of github.com/alibaba/clusterdata, whose folder cluster-trace-gpu-v2023/csv has the files with these
checksums."""
SHA256 = {
    PODS: "1ee7ed79c27a3b0861cda8ddba86a004c6aba904caafa329a76ae93ca63834a8",
    NODES: "2beca64b4d3dfa342036a34b56a495c6cef9225db836c81f541282cb1df320b5",
}
NEVER_SCHEDULED = "Pending"


@dataclass(frozen=True, slots=True, order=True)
class Ask:
    """What a pod asks for. `milli`: thousandths of a GPU, 1000 where `gpus` is more than one."""

    cpu_milli: int
    memory_mib: int
    gpus: int
    milli: int

    @property
    def gpu(self) -> float:
        """GPUs, a fraction of one where the pod asks for a part."""
        return self.gpus * self.milli / 1000


@dataclass(frozen=True, slots=True)
class Run:
    """Seconds on the trace's clock. A run that ends with the trace is cut off there: nobody knows how long it was."""

    ask: Ask
    created: float
    started: float
    ended: float


@dataclass(frozen=True, slots=True)
class Shape:
    cpu_milli: int
    memory_mib: int
    gpus: int


@dataclass(frozen=True, slots=True)
class Trace:
    """`shapes`: how many nodes there are of each. `never_started`: pods left out, since their run time is unknown."""

    runs: tuple[Run, ...]
    shapes: Mapping[Shape, int]
    never_started: int
    sha256: Mapping[str, str]

    @property
    def end(self) -> float:
        return max(run.ended for run in self.runs)


def read(directory: Path) -> Trace:
    """Errors: FileNotFoundError, or ValueError with file and line where a value is not what its column should have."""
    runs, never = [], 0
    for line, row in _rows(directory / PODS):
        try:
            ask = Ask(int(row["cpu_milli"]), int(row["memory_mib"]), int(row["num_gpu"]), int(row["gpu_milli"]))
            if not ask.gpus:
                continue
            if not 0 < ask.milli <= 1000 or (ask.gpus > 1 and ask.milli != 1000):
                raise ValueError(f"{ask.gpus} GPUs of {ask.milli} thousandths")
            if row["pod_phase"] == NEVER_SCHEDULED or not row["scheduled_time"]:
                never += 1
                continue
            run = Run(ask, float(row["creation_time"]), float(row["scheduled_time"]), float(row["deletion_time"]))
            if not run.created <= run.started < run.ended:
                raise ValueError("its times are not in order")
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{PODS}, line {line}: {error}") from error
        runs.append(run)
    if not runs:
        raise ValueError(f"{PODS}: no pod with a GPU ever started")
    shapes: dict[Shape, int] = {}
    for line, row in _rows(directory / NODES):
        try:
            shape = Shape(int(row["cpu_milli"]), int(row["memory_mib"]), int(row["gpu"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{NODES}, line {line}: {error}") from error
        shapes[shape] = shapes.get(shape, 0) + 1
    return Trace(tuple(runs), shapes, never, {name: _sha256(directory / name) for name in (PODS, NODES)})


def _rows(file: Path) -> Iterator[tuple[int, dict[str, str]]]:
    with file.open(newline="") as lines:
        yield from enumerate(csv.DictReader(lines), start=2)


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
