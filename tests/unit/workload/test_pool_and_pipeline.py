"""Tasks and chunks over worker processes: right results at every size, wrong ones found, dead workers told."""

import argparse
import json
import os
import signal
import time
from collections.abc import Callable
from io import StringIO
from typing import Any

import numpy as np
import pytest

from gpushare_workload import cli
from gpushare_workload.scenarios.cooperation import chunks
from gpushare_workload.scenarios.sharing import pool_modes
from gpushare_workload.backend.on_numpy.backend import NumpyBackend
from gpushare_workload.scenarios.cooperation.chunks import Filter, ChunkPlan
from gpushare_workload.processes.outcomes import Died, Done, Refused, WorkerError
from gpushare_workload.events import EventWriter, WrongError
from gpushare_workload.scenarios.cooperation import pipeline
from gpushare_workload.scenarios.sharing import pool
from gpushare_workload.processes.stopping import Stop, StoppedError
from gpushare_workload.processes.worker import Worker
from gpushare_workload.processes.team import Team
from tests.unit.workload.conftest import SECONDS, Client, children, wait_gone

pytestmark = pytest.mark.usefixtures("nothing_left_behind")
SHARED = {"backend": "numpy", "seed": 1}
POOL: dict[str, Any] = SHARED | {"tasks": 5, "elements": 10, "workers": 2, "streams": 3, "clients": 2}
PIPELINE: dict[str, Any] = SHARED | {"elements": 7, "chunk": 3, "prepare": 2, "gpu_workers": 1, "finish": 1, "queue": 1}


def run(scenario: Any, stop: Stop | None = None, **arguments: Any) -> list[dict[str, Any]]:
    out = StringIO()
    scenario.run(argparse.Namespace(**arguments), EventWriter(scenario.NAME, out), stop or Stop())
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_every_way_computes_the_same_sums_and_names_its_cost() -> None:
    lines = {line["mode"]: line for line in run(pool, **POOL, modes=list(pool_modes.MODES))}
    assert list(lines) == list(pool_modes.MODES)
    assert all((line["backend"], line["timed"]) == ("numpy", False) for line in lines.values())
    assert lines["process-per-task"]["startup_seconds_each"] > 0
    assert lines["pool"]["processes"] == 2
    assert lines["pool"]["startup_seconds"] < lines["pool"]["wall_seconds"]
    assert lines["pair"]["together_tasks_per_second"] > 0
    assert (lines["ceiling"]["accepted"], lines["ceiling"]["refused"]) == (2, 0)


@pytest.mark.parametrize(("tasks", "elements", "workers"), [(0, 1, 2), (1, 1, 2), (3, 7, 1)])
def test_edge_sizes_give_right_results(tasks: int, elements: int, workers: int) -> None:
    sizes = {"tasks": tasks, "elements": elements, "workers": workers}
    modes = ["process-per-task", "pool", "streams", "batched"]
    assert [line["tasks"] for line in run(pool, **POOL | sizes, modes=modes)] == [tasks] * 4


def test_a_wrong_sum_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = pool_modes.Taken([np.zeros(5)], {}, 1, None)
    monkeypatch.setitem(pool_modes.MODES, "batched", lambda _: wrong)
    with pytest.raises(WrongError, match="batched: the results differ"):
        run(pool, **POOL, modes=["batched"])


def test_the_ceiling_of_all_clients_runs_only_when_it_is_named() -> None:
    parser = argparse.ArgumentParser()
    pool.add_arguments(parser)
    assert parser.parse_args([]).modes == ["pair", "process-per-task", "pool", "streams", "batched"]


def test_the_ceiling_tells_how_many_clients_were_refused_and_by_which_error(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = [Done(({"backend": "cupy", "timed": True}, 120))] * 48 + [
        Refused(46, "all devices are busy", memory=False)
    ] * 2
    monkeypatch.setattr(Team, "go", lambda *_, **__: 48)
    monkeypatch.setattr(Team, "outcomes", lambda *_: outcomes)
    [line] = run(pool, **POOL | {"clients": 1}, modes=["ceiling"])
    assert (line["accepted"], line["refused"], line["refusals"]) == (48, 2, {"CUDA error 46": 2})
    assert line["gpu_mib"] == 48 * 120


def test_a_client_of_the_ceiling_that_dies_is_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Team, "go", lambda *_, **__: 0)
    monkeypatch.setattr(Team, "outcomes", lambda *_: [Died(-9, on_gpu=True)])
    with pytest.raises(
        WorkerError, match="client 0 was ended by SIGKILL before it gave a result, while it used the GPU"
    ):
        run(pool, **POOL | {"clients": 1}, modes=["ceiling"])


def test_asked_to_end_a_pool_ends() -> None:
    stop = Stop()
    stop.ask()
    with pytest.raises(StoppedError):
        run(pool, stop, **POOL, modes=["pool"])


@pytest.mark.parametrize(("elements", "chunk"), [(7, 3), (6, 3), (1, 1), (2, 1000)])
def test_the_pipeline_and_one_process_agree_at_every_size(elements: int, chunk: int) -> None:
    sizes = {"elements": elements, "chunk": chunk}
    lines = run(pipeline, **PIPELINE | sizes, filters=[Filter.ADD, Filter.NORMALISE])
    assert [(line["filter"], line["form"]) for line in lines] == [
        ("add", "serial"),
        ("add", "pipeline"),
        ("normalise", "serial"),
        ("normalise", "pipeline"),
    ]
    assert not any(line["timed"] for line in lines)
    assert all(line["chunks"] == -(-elements // min(chunk, elements)) for line in lines)
    assert all(length <= 1 for line in lines for length in line.get("longest_queues", []))


def dying(worker: Worker, *_: Any) -> None:
    worker.start()
    for _order in worker.tasks():
        os.kill(os.getpid(), signal.SIGKILL)


def failing(worker: Worker, *_: Any) -> None:
    worker.start()
    for order in worker.tasks():
        raise WrongError(f"chunk {order.item} is wrong")


@pytest.mark.parametrize("stage", ["_prepare", "_compute", "_finish"])
def test_a_worker_that_dies_in_any_stage_is_an_error_that_names_it(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, stage, dying)
    name = {"_prepare": "prepare", "_compute": "gpu", "_finish": "finish"}[stage]
    with pytest.raises(WorkerError, match=rf"{name} \d \(pid \d+\) was ended by SIGKILL"):
        run(pipeline, **PIPELINE, filters=[Filter.ADD])


def test_a_wrong_chunk_ends_the_pipeline_and_names_the_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "_finish", failing)
    with pytest.raises(WrongError, match=r"finish 0 \(pid \d+\): chunk \d is wrong"):
        run(pipeline, **PIPELINE, filters=[Filter.ADD])


@pytest.mark.parametrize("name", list(Filter))
def test_a_changed_value_in_a_chunk_is_found(name: Filter) -> None:
    plan = ChunkPlan(name, elements=10, chunk=10, seed=1)
    buffers = np.zeros((3, 10), np.float32)
    chunks.prepare(plan, 0, buffers)
    chunks.compute(plan, 0, buffers, NumpyBackend())
    chunks.finish(plan, 0, buffers)
    buffers[chunks.RESULT, 9] += 0.01
    with pytest.raises(WrongError, match=f"chunk 0 of 1: {name} differs"):
        chunks.finish(plan, 0, buffers)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["pipeline", "--gpu-workers", "0"], "--gpu-workers 0: must be at least 1"),
        (["pipeline", "--queue", "0"], "--queue 0: must be at least 1"),
        (["pool", "--clients", "0"], "--clients 0: must be at least 1"),
    ],
)
def test_a_number_below_its_bound_names_its_option(
    argv: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        assert cli.main(["run", *argv]) == 2
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert words in capsys.readouterr().err


LONG = {
    "pool": ("pool", "--modes", "process-per-task", "--tasks", "1000"),
    "pipeline": ("pipeline", "--elements", "2000000000", "--prepare", "2"),
    "refine": ("refine", "--size", "30", "--tolerance", "0", "--sweeps", "100000000"),
}


@pytest.mark.parametrize("name", LONG)
def test_sigterm_ends_a_program_and_its_workers_soon(name: str, start_client: Callable[..., Client]) -> None:
    client = start_client(*LONG[name])
    workers = wait_for_children(client.process.pid)
    status = client.terminate()
    assert (status, client.lines[-1]["event"]) == (4, "stopped")
    wait_gone(workers)


def wait_for_children(pid: int) -> list[int]:
    """The workers of a program, once one of them runs."""
    end = time.monotonic() + SECONDS
    while not (found := children(pid)):
        assert time.monotonic() < end, "no worker was started"
        time.sleep(0.02)
    return sorted(found)
