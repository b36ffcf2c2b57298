"""The workload without any GPU: results, edge sizes, bad arguments, and what the exit code says."""

import argparse
import json
import signal
import subprocess
import sys
from io import StringIO
from typing import Any

import pytest

from gpushare_workload import cli
from gpushare_workload.backend.interface import DeviceProperties, GpuError
from gpushare_workload.gpus.grant import MIB, ContainerGrant, granted_sms
from gpushare_workload.events import EventWriter, WrongError
from gpushare_workload.scenarios.isolation import depart
from gpushare_workload.scenarios.isolation import limits
from gpushare_workload.processes.stopping import Stop


class FakeBackend:
    """A GPU of 132 SMs as a client with a limit sees it; computes right unless told otherwise."""

    name, simulated = "fake", True

    def __init__(self, sms: int = 32, free: int = 4000 * MIB, limit: int = 4096 * MIB, wrong: bool = False) -> None:
        self.sms, self.free, self.limit, self.wrong = sms, free, limit, wrong
        self.error: GpuError | None = None
        self.closed = False

    def device(self) -> DeviceProperties:
        return DeviceProperties("NVIDIA H200", "GPU-1", self.sms, 132, self.free, 143155 * MIB)

    def try_allocate(self, size: int) -> bool:
        return size <= self.limit

    def sum_of_squares(self, vector: Any) -> float:
        if self.error:
            raise self.error
        return float(vector @ vector) + self.wrong

    def spin(self, milliseconds: float) -> None: ...

    def synchronize(self) -> None:
        if self.error:
            raise self.error

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(
    ("percent", "sms"), [(100, 132), (50, 66), (25, 32), (20, 26), (10, 12), (1, 8)], ids=lambda value: str(value)
)
def test_the_sms_of_a_percentage_are_those_measured_on_an_h200(percent: int, sms: int) -> None:
    assert granted_sms(132, percent) == sms


def test_limits_that_hold_raise_nothing_and_are_reported() -> None:
    out = StringIO()
    limits.check(FakeBackend(), ContainerGrant("s", 25, 4096 * MIB), EventWriter("limits", out))
    line = json.loads(out.getvalue())
    assert line["problems"] == []
    assert line["observed"]["above_refused"] is True


@pytest.mark.parametrize(
    ("backend", "words"),
    [
        (FakeBackend(sms=132), "132 SMs are visible, 25 % of 132 are 32"),
        (FakeBackend(free=143155 * MIB), "bytes are free, only"),
        (FakeBackend(limit=143155 * MIB), "was not refused"),
    ],
    ids=["threads", "memory-info", "allocation"],
)
def test_a_limit_that_is_not_in_force_is_named(backend: FakeBackend, words: str) -> None:
    with pytest.raises(WrongError, match=words):
        limits.check(backend, ContainerGrant("s", 25, 4096 * MIB), EventWriter("limits", StringIO()))


def test_a_grant_that_is_no_number_names_its_variable() -> None:
    with pytest.raises(ValueError, match="GPUSHARE_THREADS='many' is not a whole number"):
        ContainerGrant.from_environment({"GPUSHARE_THREADS": "many"})


def run_neighbour(monkeypatch: pytest.MonkeyPatch, backend: FakeBackend) -> list[dict[str, Any]]:
    monkeypatch.setattr(depart, "open_backend", lambda _: backend)
    arguments = argparse.Namespace(
        backend="auto", role="neighbour", kernel_ms=1.0, elements=7, duration=0.2, report_every=0.05, seed=1
    )
    out = StringIO()
    depart.run(arguments, EventWriter("depart", out), Stop())
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_a_neighbour_counts_its_right_results(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = FakeBackend()
    last = run_neighbour(monkeypatch, backend)[-1]
    assert (last["event"], last["wrong"]) == ("finished", 0)
    assert last["checks"] > 1
    assert backend.closed


def test_a_wrong_result_is_an_error_that_shows_both_values(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(WrongError, match=r"check 0: sum of squares is .*, expected"):
        run_neighbour(monkeypatch, FakeBackend(wrong=True))


def test_a_neighbour_hit_by_a_fault_says_the_cuda_error(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = FakeBackend()
    backend.error = GpuError(700, "an illegal memory access was encountered")
    with pytest.raises(GpuError, match="CUDA error 700"):
        run_neighbour(monkeypatch, backend)
    assert backend.closed


def test_a_victim_that_the_daemon_ended_says_so_and_ends_in_good_order(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = FakeBackend()
    backend.error = GpuError(810, "terminated")
    monkeypatch.setattr(depart, "open_backend", lambda _: backend)
    before = signal.getsignal(signal.SIGTERM)
    out = StringIO()
    try:
        depart.run(
            argparse.Namespace(
                backend="auto",
                role="victim",
                kernel_ms=5.0,
                elements=1,
                duration=1.0,
                report_every=1.0,
                on_sigterm=depart.OnSigterm.DIE,
            ),
            EventWriter("depart", out),
            Stop(),
        )
    finally:
        signal.signal(signal.SIGTERM, before)
    assert json.loads(out.getvalue().splitlines()[-1])["event"] == "terminated"


@pytest.mark.parametrize(
    ("argv", "status", "words"),
    [
        (["run", "pool", "--tasks", "-1"], 2, "--tasks -1: must be at least 0"),
        (["run", "pool", "--workers", "0"], 2, "--workers 0: must be at least 1"),
        (["run", "depart", "--elements", "0"], 2, "--elements 0"),
    ],
)
def test_a_bad_argument_names_itself_and_its_value(
    argv: list[str], status: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        assert cli.main(argv) == status
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert words in capsys.readouterr().err


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
    """(exit code, None: it lives, events told) of a victim with kernels of 0.2 s, that long after SIGTERM."""
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
