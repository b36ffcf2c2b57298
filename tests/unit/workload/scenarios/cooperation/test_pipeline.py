"""pipeline: the stages and one process agree, wrong chunks are found, and dead workers are named."""

import argparse
import json
import os
import signal
from io import StringIO
from typing import Any

import pytest

from gpushare_workload.backend.filters import ChunkFilter
from gpushare_workload.events import JsonLines, WrongError
from gpushare_workload.processes.outcomes import WorkerError
from gpushare_workload.processes.stopping import Stop
from gpushare_workload.processes.worker import Worker
from gpushare_workload.scenarios.cooperation import pipeline
from gpushare_workload.scenarios.cooperation.pipeline import Copies

pytestmark = pytest.mark.usefixtures("nothing_left_behind")
OPTIONS: dict[str, Any] = {
    "backend": "numpy",
    "seed": 1,
    "elements": 7,
    "chunk": 3,
    "prepare": [2],
    "gpu_workers": 1,
    "finish": [1],
    "queue": 1,
    "pieces": 3,
    "copies": [Copies.PAGEABLE],
    "repeats": 1,
    "filters": [ChunkFilter.ADD],
}
TARGETS: tuple[Any, Any, Any] = (pipeline.prepare_chunks, pipeline.compute_chunks, pipeline.finish_chunks)


def run(targets: tuple[Any, Any, Any] = TARGETS, **options: Any) -> list[dict[str, Any]]:
    out = StringIO()
    pipeline.run(argparse.Namespace(**OPTIONS | options), JsonLines("pipeline", out), Stop(), targets)
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_both_forms_are_measured_for_each_filter() -> None:
    lines = run(filters=list(ChunkFilter))
    assert [(line["filter"], line["form"]) for line in lines] == [
        ("add", "serial"),
        ("add", "pipeline"),
        ("normalise", "serial"),
        ("normalise", "pipeline"),
        ("signal", "serial"),
        ("signal", "pipeline"),
    ]
    assert not any(line["timed"] for line in lines)
    assert all(line["chunks"] == 3 for line in lines)
    assert all(length <= 1 for line in lines for length in line.get("longest_queues", []))


def test_the_gain_over_one_process_is_taken_in_each_repeat() -> None:
    serial, piped = run(repeats=2)
    assert piped["repeats"] == 2
    assert "times_as_fast" not in serial
    assert piped["times_as_fast"] is None, "NumPy's times are no GPU's"
    assert pipeline.gain({"wall_seconds": 6.0}, {"wall_seconds": 2.0, "timed": True}) == 3.0


def test_each_way_to_copy_and_each_number_of_processes_is_measured() -> None:
    _, *piped = run(copies=list(Copies), prepare=[1, 2], filters=[ChunkFilter.SIGNAL])
    assert [(line["copies"], line["pieces"], line["workers"]["prepare"]) for line in piped] == [
        ("pageable", 1, 1),
        ("pageable", 1, 2),
        ("overlapped", 3, 1),
        ("overlapped", 3, 2),
    ]
    assert len({line["stored_mib"] for line in piped}) == 1
    assert all(line["cores"] >= 1 for line in piped)


@pytest.mark.parametrize("option", ["prepare", "finish"])
def test_a_stage_without_processes_is_refused(option: str) -> None:
    with pytest.raises(ValueError, match=f"--{option} 0: must be at least 1"):
        run(**{option: [2, 0]})


def test_each_number_that_prepares_is_measured_with_each_that_finishes() -> None:
    _, *piped = run(prepare=[1, 2], finish=[1, 3], filters=[ChunkFilter.ADD])
    assert [(line["workers"]["prepare"], line["workers"]["finish"]) for line in piped] == [
        (1, 1),
        (1, 3),
        (2, 1),
        (2, 3),
    ]


def test_a_single_chunk_may_be_shorter_than_asked_for() -> None:
    assert [line["chunks"] for line in run(elements=2, chunk=1000)] == [1, 1]


def dying(worker: Worker, *_: Any) -> None:
    worker.start()
    for _task in worker.tasks():
        os.kill(os.getpid(), signal.SIGKILL)


def failing(worker: Worker, *_: Any) -> None:
    worker.start()
    for task in worker.tasks():
        raise WrongError(f"chunk {task.item} is wrong")


@pytest.mark.parametrize(("stage", "name"), list(enumerate(pipeline.STAGES)))
def test_a_worker_that_dies_in_any_stage_is_an_error_that_names_it(stage: int, name: str) -> None:
    targets = (*TARGETS[:stage], dying, *TARGETS[stage + 1 :])
    with pytest.raises(WorkerError, match=rf"{name} \d \(pid \d+\) was ended by SIGKILL"):
        run(targets)


def test_a_wrong_chunk_ends_the_pipeline_and_names_the_chunk() -> None:
    with pytest.raises(WrongError, match=r"finish 0 \(pid \d+\): chunk \d is wrong"):
        run((*TARGETS[:2], failing))
