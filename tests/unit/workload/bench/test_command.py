"""The whole benchmark with NumPy: its files, its refusals, and its end when a client dies or a signal comes."""

import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpushare_workload.mps.modes import SharingMode
from gpushare_workload.results.document import Document

SECONDS = 120.0
SHORT = ("--backend", "numpy", "--grids", "small", "--kinds", "compute", "--repeats", "1", "--seconds", "0.2")


def start(*options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "gpushare_workload.cli", "bench", *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(*options: str) -> tuple[int, list[dict[str, Any]], str]:
    """(exit code, events, what it said to people)."""
    out, err = (process := start(*options)).communicate(timeout=SECONDS)
    return process.returncode, [json.loads(line) for line in out.splitlines()], err


def read(path: Path) -> Document:
    return Document.from_json(json.loads(path.read_text()))


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The machine has no simulated GPU, unless a test asks for one; no MPS daemon either."""
    monkeypatch.setenv("GPUSHARE_SIMULATION_DIR", str(tmp_path / "none"))
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path / "none"))


def test_every_mode_is_measured_on_one_machine_and_nothing_stays(tmp_path: Path, gpu: Path) -> None:
    result, table = tmp_path / "b.json", tmp_path / "b.csv"
    code, events, err = finish("--own-daemon", "--clients", "2", *SHORT, "--json", str(result), "--csv", str(table))
    assert code == 0, err
    document = read(result)
    assert {run.mode for run in document.runs} == set(SharingMode)
    assert {event["mode"] for event in events} == {mode.value for mode in SharingMode}
    assert [run.sms for run in document.runs if run.mode is SharingMode.MPS_EQUAL_CAPS] == [66, 66]
    assert all(result.kernels > 0 for run in document.runs for result in run.results)
    assert [len(run.results) for run in document.runs] == [2] * 2 * len(SharingMode)
    assert {run.load.depth for run in document.runs} == {1, 16}
    assert all(len(run.memory_mib) == (1 if run.mode is SharingMode.STREAMS else 2) for run in document.runs)
    assert (document.simulated, document.ended) == (True, "")
    assert document.environment["gpu"]["product"] == "NVIDIA H200 (simulated)"
    assert {line["mode"] for line in csv.DictReader(table.open())} == {mode.value for mode in SharingMode}
    assert not list(gpu.glob("tmp/gpushare-bench-*/GPU-*/pipe"))


def test_a_window_shorter_than_a_round_still_gives_figures(tmp_path: Path) -> None:
    table = tmp_path / "b.csv"
    where = (
        "--modes",
        "time-slicing",
        "--clients",
        "1",
        "--grids",
        "saturating",
        "--depths",
        "16",
        "--csv",
        str(table),
    )
    code, (event,), err = finish(*SHORT, *where, "--seconds", "0.001", "--warmup", "0.5")
    assert code == 0, err
    assert event["kernels_per_second"] > 0
    (row,) = csv.DictReader(table.open())
    assert float(row["p99_us"]) > 1000


def test_a_client_that_dies_is_an_error_and_what_was_measured_is_kept(tmp_path: Path) -> None:
    result = tmp_path / "b.json"
    where = ("--modes", "time-slicing", "--clients", "1", "--json", str(result))
    process = start(*SHORT, *where, "--grids", "small", "half", "--depths", "1", "--seconds", "2")
    assert process.stdout is not None
    process.stdout.readline()  # the first of two runs of the same client is done
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    (client,) = (int(pid) for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes())
    os.kill(client, signal.SIGKILL)
    _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 3
    assert f"client 0 (pid {client}) was ended by SIGKILL" in err
    document = read(result)
    assert len(document.runs) == 1
    assert "SIGKILL" in document.ended


def test_sigterm_ends_a_benchmark_in_good_order(tmp_path: Path, gpu: Path) -> None:
    process = start("--own-daemon", *SHORT, "--repeats", "50", "--modes", "mps", "--clients", "1")
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=SECONDS)
    assert process.returncode == 4
    assert not list(gpu.glob("tmp/gpushare-bench-*/GPU-*/pipe"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--modes", "mps"), "--modes mps: cannot be measured here (existing setup: no MPS daemon)"),
        (("--exclusive",), "--exclusive: belongs to --own-daemon"),
        (("--own-daemon",), "--own-daemon: without NVML nothing shows"),
        (("--clients", "0"), "clients 0: a GPU takes 1 to 48"),
        (("--pods", "2", "--pod", "0"), "--pods: several pods begin together"),
    ],
)
def test_what_cannot_be_measured_is_refused_with_the_reason(options: tuple[str, ...], words: str) -> None:
    code, _, err = finish(*SHORT, *options)
    assert code == 2
    assert words in err


def test_pods_that_missed_the_common_start_are_an_error() -> None:
    options = ("--modes", "time-slicing", "--clients", "1", "--pods", "2", "--pod", "0", "--start-at", "1000000")
    code, _, err = finish(*SHORT, *options)
    assert code == 2
    assert "the common start passed" in err
