"""depart: neighbours that check their results, and victims by what they do on SIGTERM."""

import argparse
import json
import signal
import subprocess
import sys
from io import StringIO
from typing import Any

import pytest

from gpushare_workload.backend.interface import GpuError
from gpushare_workload.events import JsonLines, WrongError
from gpushare_workload.processes.stopping import Stop, StoppedError
from gpushare_workload.scenarios.isolation import depart
from tests.unit.workload.scenarios.isolation.fake_backend import FakeBackend

OPTIONS: dict[str, Any] = {
    "backend": "auto",
    "role": "neighbour",
    "kernel_ms": 1.0,
    "elements": 7,
    "duration": 0.2,
    "report_every": 0.05,
    "on_sigterm": depart.OnSigterm.FINISH,
    "seed": 1,
}


def run(backend: FakeBackend, **options: Any) -> list[dict[str, Any]]:
    out = StringIO()
    depart.run(argparse.Namespace(**OPTIONS | options), JsonLines("depart", out), Stop(), lambda _: backend)  # type: ignore[arg-type,return-value]
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_a_neighbour_counts_its_right_results() -> None:
    backend = FakeBackend()
    last = run(backend)[-1]
    assert (last["event"], last["wrong"]) == ("finished", 0)
    assert last["checks"] > 1
    assert backend.closed


def test_a_wrong_result_is_an_error_that_shows_both_values() -> None:
    with pytest.raises(WrongError, match=r"check 0: sum of squares is .*, expected"):
        run(FakeBackend(wrong=True))


def test_a_neighbour_hit_by_a_fault_has_the_cuda_error() -> None:
    backend = FakeBackend()
    backend.error = GpuError(700, "an illegal memory access was encountered")
    with pytest.raises(GpuError, match="CUDA error 700"):
        run(backend)
    assert backend.closed


def test_a_victim_that_the_daemon_terminated_ends_in_good_order() -> None:
    backend = FakeBackend()
    backend.error = GpuError(810, "terminated")
    assert run(backend, role="victim", duration=0.0)[-1]["event"] == "terminated"


@pytest.mark.parametrize("role", ["victim", "neighbour"])
def test_work_that_is_interrupted_does_not_count_as_done(role: str) -> None:
    command = [sys.executable, "-m", "gpushare_workload.cli", "run", "depart", "--backend", "numpy", "--role", role]
    options = ["--report-every", "0.1", "--kernel-ms", "10", "--on-sigterm", "finish", "--duration", "300"]
    process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if json.loads(line)["event"] == "started":
            break
    process.send_signal(signal.SIGTERM)
    rest = [json.loads(line)["event"] for line in process.stdout]
    assert (process.wait(timeout=20), rest[-1]) == (4, "stopped")
    assert "finished" not in rest


def test_a_victim_whose_contexts_end_early_has_not_done_its_work() -> None:
    backend = FakeBackend()
    backend.error = GpuError(810, "terminated")
    with pytest.raises(StoppedError, match="before --duration was over"):
        run(backend, role="victim", duration=300.0)


def test_sigterm_ends_a_neighbour_cleanly_soon() -> None:
    command = [sys.executable, "-m", "gpushare_workload.cli", "run", "depart", "--backend", "numpy"]
    process = subprocess.Popen([*command, "--report-every", "0.1"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if json.loads(line)["event"] == "progress":
            break
    process.send_signal(signal.SIGTERM)
    rest = process.stdout.read()
    assert process.wait(timeout=20) == 0
    assert json.loads(rest.splitlines()[-1])["event"] == "finished"


def sigterm_in_mid_kernel(on_sigterm: str, seconds: float) -> tuple[int | None, list[str]]:
    """(exit code, events) of a victim with kernels of 0.2 s; the code is None if it lives `seconds` after SIGTERM."""
    command = [sys.executable, "-m", "gpushare_workload.cli", "run", "depart", "--backend", "numpy", "--role", "victim"]
    process = subprocess.Popen(
        [*command, "--kernel-ms", "200", "--on-sigterm", on_sigterm], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    events = [next(json.loads(line)["event"] for line in process.stdout if '"started"' in line)]
    process.send_signal(signal.SIGTERM)
    try:
        status = process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        status = None
        process.kill()
        process.wait()
    return status, events + [json.loads(line)["event"] for line in process.stdout]


def test_a_victim_that_catches_sigterm_ends_after_its_kernel_or_not_at_all() -> None:
    assert sigterm_in_mid_kernel("finish", seconds=10) == (0, ["started", "finished"])
    assert sigterm_in_mid_kernel("ignore", seconds=1) == (None, ["started"])
    assert sigterm_in_mid_kernel("die", seconds=10) == (-signal.SIGTERM, ["started"])
