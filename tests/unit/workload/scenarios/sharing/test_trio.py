"""trio: inference, training and preprocessing, each alone and all three beside each other."""

from pathlib import Path
from typing import Any

import pytest

from gpushare_workload.processes.stopping import Stop, StoppedError
from gpushare_workload.scenarios.sharing import trio
from gpushare_workload.scenarios.sharing.trio import ROLES, Role
from tests.unit.workload.scenarios.sharing.running import runner

TINY: dict[str, Any] = {
    "duration": 0.2, "repeats": 1, "rate": 50.0, "depth": 1, "grid": "small", "iterations": 256, "elements": 256,
}  # fmt: skip


@pytest.fixture(autouse=True)
def no_daemon(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))


run = runner(trio, TINY)


def test_each_role_is_measured_alone_and_beside_the_others() -> None:
    lines = run()
    alone = [(line["role"], line["beside"]) for line in lines[:3]]
    together = [(line["role"], line["beside"]) for line in lines[3:]]
    assert alone == [(role, []) for role in ROLES]
    assert together == [(role, [other for other in ROLES if other is not role]) for role in ROLES]
    assert {line["kept"] for line in lines} == {None}, "NumPy's rates are no GPU's"
    assert all(line["per_second"] > 0 for line in lines)
    assert {(line["sharing"], line["training_threads_percent"]) for line in lines} == {("time-slicing", 100.0)}


def test_a_role_keeps_a_part_of_its_rate_alone() -> None:
    assert trio.kept_of({"per_second": 5.0, "timed": True}, {"per_second": 20.0}) == 0.25


def test_inference_has_a_latency_and_the_others_have_none() -> None:
    for line in run():
        assert ("p99_ms" in line) == (line["role"] == Role.INFERENCE)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rate": 0.0}, "--rate 0.0: must be more than 0"),
        ({"threads": [50.0]}, "--threads 50: no MPS daemon is in reach"),
        ({"depth": 0}, "--depth 0: must be at least 1"),
    ],
)
def test_what_cannot_be_measured_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(**options)


def test_it_ends_when_it_is_asked_to() -> None:
    stop = Stop()
    stop.ask()
    with pytest.raises(StoppedError):
        run(stop)
