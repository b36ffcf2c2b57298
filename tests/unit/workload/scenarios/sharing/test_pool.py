"""pool: every mode computes the same sums, wrong ones are found, and the ceiling counts what the GPU accepts."""

import argparse
import json
import time
from io import StringIO
from typing import Any

import numpy as np
import pytest

from gpushare_workload.events import JsonLines, WrongError
from gpushare_workload.processes.outcomes import Died, Done, Outcome, Refused, WorkerError
from gpushare_workload.processes.shared_array import SharedArray
from gpushare_workload.processes.stopping import Stop, StoppedError
from gpushare_workload.scenarios.sharing import pool, pool_modes

pytestmark = pytest.mark.usefixtures("nothing_left_behind")
OPTIONS: dict[str, Any] = {
    "backend": "numpy",
    "seed": 1,
    "tasks": 3,
    "elements": 10,
    "workers": [2],
    "streams": 3,
    "clients": 2,
    "repeats": 1,
    "prepare": 0.0,
}


def run(stop: Stop | None = None, modes: Any = pool_modes.MODES, **options: Any) -> list[dict[str, Any]]:
    arguments, out = argparse.Namespace(**{**OPTIONS, "modes": list(modes), **options}), StringIO()
    pool.run(arguments, JsonLines("pool", out), stop or Stop(), modes)
    started, *lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert started["event"] == "started"
    return lines


def test_every_mode_computes_the_same_sums_and_names_its_cost() -> None:
    lines = {line["mode"]: line for line in run()}
    assert list(lines) == list(pool_modes.MODES)
    assert all((line["backend"], line["timed"]) == ("numpy", False) for line in lines.values())
    assert lines["process-per-task"]["startup_seconds_each"] > 0
    assert lines["pool"]["processes"] == 2
    assert lines["pool"]["startup_seconds"] < lines["pool"]["wall_seconds"]
    assert lines["pair"]["together_tasks_per_second"] > 0
    assert (lines["ceiling"]["accepted"], lines["ceiling"]["refused"]) == (2, 0)


@pytest.mark.parametrize(("tasks", "elements", "workers"), [(0, 1, 2), (1, 1, 2), (3, 7, 1)])
def test_edge_sizes_give_right_results(tasks: int, elements: int, workers: int) -> None:
    modes = {name: pool_modes.MODES[name] for name in ("process-per-task", "pool", "streams", "batched")}
    lines = run(modes=modes, tasks=tasks, elements=elements, workers=[workers])
    assert [line["tasks"] for line in lines] == [tasks] * 4


def test_a_process_per_task_runs_few_of_many_tasks() -> None:
    def mode(job: pool_modes.PoolJob) -> pool_modes.ModeResult:
        first = job.data.array[: job.tasks("process-per-task")]
        return pool_modes.ModeResult([np.einsum("ij,ij->i", first, first)], {}, 1, None)

    assert [line["tasks"] for line in run(modes={"process-per-task": mode}, tasks=25)] == [20]


def test_the_progress_counts_every_process_that_a_mode_starts() -> None:
    job = pool_modes.PoolJob(SharedArray((50, 1)), "numpy", workers=4, streams=1, clients=7, stop=Stop())
    counts = {mode: job.processes(mode) for mode in pool_modes.MODES}
    assert counts == {"pair": 3, "process-per-task": 20, "pool": 4, "streams": 1, "batched": 1, "ceiling": 7}


def test_repeats_give_medians_and_their_spread() -> None:
    seconds = iter([4.0, 1.0, 2.0])

    def mode(_: pool_modes.PoolJob) -> pool_modes.ModeResult:
        return pool_modes.ModeResult([], {}, 1, None, {"work_seconds": next(seconds)})

    [line] = run(modes={"ceiling": mode}, repeats=3)
    spread = [line["repeats"], line["work_seconds"], line["work_seconds_least"], line["work_seconds_largest"]]
    assert spread == [3, 2.0, 1.0, 4.0]


def test_a_wrong_sum_is_found() -> None:
    wrong = pool_modes.ModeResult([np.zeros(3)], {}, 1, None)
    with pytest.raises(WrongError, match="batched: the results differ"):
        run(modes={"batched": lambda _: wrong})


def test_the_memory_of_a_mode_is_that_of_all_its_processes() -> None:
    [line] = run(modes={"ceiling": lambda _: pool_modes.ModeResult([], {}, 48, 120)})
    assert (line["gpu_mib"], line["gpu_mib_per_process"]) == (48 * 120, 120)


def test_the_ceiling_of_all_clients_runs_only_when_it_is_named() -> None:
    parser = argparse.ArgumentParser()
    pool.add_arguments(parser)
    assert parser.parse_args([]).modes == ["pair", "process-per-task", "pool", "streams", "batched"]


def test_the_ceiling_counts_the_refused_clients_by_their_error() -> None:
    accepted = Done(({"backend": "cupy", "timed": True}, 120))
    refused = Refused(46, "all devices are busy", memory=False)
    outcomes: list[Outcome] = [*[accepted] * 48, *[refused] * 2]
    result = pool_modes.count_accepted(outcomes)
    assert (result.processes, result.memory_mib) == (48, 120)
    assert result.figures == {"clients": 50, "accepted": 48, "refused": 2, "refusals": {"CUDA error 46": 2}}


def test_a_client_of_the_ceiling_that_dies_is_no_refusal() -> None:
    with pytest.raises(
        WorkerError, match="client 0 was ended by SIGKILL before it gave a result, while it used the GPU"
    ):
        pool_modes.count_accepted([Died(-9, on_gpu=True)])


def test_a_pool_that_is_asked_to_end_ends() -> None:
    stop = Stop()
    stop.ask()
    with pytest.raises(StoppedError):
        run(stop, modes={"pool": pool_modes.pool})


def test_numbers_of_workers_are_measured_by_the_modes_that_have_any() -> None:
    asked: list[tuple[str, int]] = []

    def mode(name: str) -> Any:
        def run_mode(job: pool_modes.PoolJob) -> pool_modes.ModeResult:
            asked.append((name, job.workers))
            return pool_modes.ModeResult([], {}, job.workers, None)

        return run_mode

    lines = run(modes={name: mode(name) for name in ("pool", "batched")}, workers=[1, 4])
    assert asked == [("pool", 1), ("pool", 4), ("batched", 1)]
    assert [line["processes"] for line in lines] == [1, 4, 1]
    assert all(line["cores"] >= 1 for line in lines)


def test_no_workers_are_refused() -> None:
    with pytest.raises(ValueError, match="--workers 0: must be at least 1"):
        run(workers=[1, 0])


def test_preparing_a_task_takes_that_much_of_a_core() -> None:
    began = time.thread_time()
    pool_modes.use_core(0.05)
    assert 0.05 <= time.thread_time() - began < 0.5


def test_every_task_is_prepared_before_the_gpu_works_on_it() -> None:
    modes = {name: pool_modes.MODES[name] for name in ("process-per-task", "pool", "streams", "batched")}
    lines = run(modes=modes, prepare=30.0, workers=[1])
    for line in lines[1:]:
        assert line["work_seconds"] >= 3 * 0.03, line["mode"]
