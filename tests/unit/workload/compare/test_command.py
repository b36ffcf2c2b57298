"""The whole comparison on a simulated GPU: what it finds, what it refuses, and that nothing of it stays."""

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpushare.simulation.client import SimulatedContext
from gpushare_workload.gpus.inventory import open_monitor
from tests.unit.workload.conftest import running

Write = Callable[[str], tuple[str, ...]]
SECONDS = 120.0
FIGURES = ("--rate-json", "rate", "--latency-json", "ms", "--seconds", "0.3", "--warmup", "0", "--repeats", "1")

pytestmark = pytest.mark.usefixtures("nothing_left")


def start(*options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "gpushare_workload.cli", "compare", *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(*options: str) -> tuple[int, list[dict[str, Any]], str]:
    """(exit code, events, what it said to people)."""
    out, err = (process := start(*options)).communicate(timeout=SECONDS)
    return process.returncode, [json.loads(line) for line in out.splitlines()], err


def nothing_of_it(gpu: Path, folder: Path) -> bool:
    """Tells whether nothing is left: neither copies, nor a daemon, nor its directory, nor anything on the GPU."""
    monitor = open_monitor()
    assert monitor is not None
    listed = monitor.processes()
    return not (running(folder) or list(gpu.glob("tmp/gpushare-bench-*/GPU-*/")) or listed.others or listed.mps_clients)


def test_copies_are_measured_in_every_mode_and_nothing_stays(gpu: Path, tmp_path: Path, script: Write) -> None:
    result = tmp_path / "compare.json"
    code, events, err = finish(*FIGURES, "--copies", "2", "--json", str(result), "--", *script("forever()\n"))
    assert code == 0, err
    assert [(event["mode"], event["copies"]) for event in events[:-1]] == [
        ("alone", [1]),
        ("time-slicing", [2]),
        ("mps", [2]),
        ("mps-capped", [2]),
    ]
    assert {event["timed"] for event in events} == {False}
    document = json.loads(result.read_text())
    assert (document["timed"], document["verdict"]["answer"], document["share"]) == (False, "untimed", None)
    assert [row["rates"][0]["median"] for row in document["rows"]] == [100.0, 200.0, 200.0, 200.0]
    assert document["rows"][0]["p99_ms"][0]["median"] == 2.0
    assert "The GPU is simulated" in err
    assert nothing_of_it(gpu, tmp_path)


def test_copies_are_clients_of_the_daemon_with_the_threads_of_their_mode(
    gpu: Path, tmp_path: Path, script: Write
) -> None:
    seen = script(
        "from gpushare.simulation.client import SimulatedContext\n"
        "context = SimulatedContext.create()\n"
        "figure(rate=context.sms if context.under_mps else 1)\ncontext.close()\n"
    )
    code, events, err = finish("--rate-json", "rate", "--repeats", "1", "--copies", "2", "--threads", "25", "--", *seen)
    assert code == 0, err
    rates = {event["mode"]: event["rates"][0][0] for event in events[:-1]}
    assert rates == {"alone": [1.0], "time-slicing": [1.0, 1.0], "mps": [132.0, 132.0], "mps-capped": [32.0, 32.0]}


def test_a_program_with_an_end_is_measured_by_its_runs(gpu: Path, script: Write) -> None:
    options = ("--repeats", "2", "--copies", "2", "--modes", "mps", "--", *script("time.sleep(0.5)\n"))
    code, events, err = finish(*options)
    assert code == 0, err
    assert len(events) == 5
    assert all(0.2 < rate <= 2.0 for event in events[:-1] for rate in event["rates"][0][0])


@pytest.mark.parametrize(
    ("others", "rates"),
    [
        ([7], [[[[100.0], []]], [[[], [7.0]]], [[[100.0], [7.0]]]]),
        (
            [7, 5],
            [[[[100.0], [], []]], [[[], [7.0], []]], [[[], [], [5.0]]], [[[100.0], [7.0], [5.0]]]],
        ),
    ],
    ids=["a pair", "three"],
)
def test_several_programs_run_beside_each_other(
    gpu: Path, tmp_path: Path, script: Write, others: list[int], rates: list[Any]
) -> None:
    texts = [f"while True:\n    figure(rate={rate})\n    time.sleep(0.05)\n" for rate in others]
    beside = [word for text in texts for word in ("--beside", " ".join(script(text)))]
    code, events, err = finish(*FIGURES, "--modes", "mps", *beside, "--", *script("forever()\n"))
    assert code == 0, err
    assert [event["rates"] for event in events[:-1]] == rates


def test_copies_that_do_not_fit_are_told_as_such_and_end_their_mode(gpu: Path, tmp_path: Path, script: Write) -> None:
    full = "if os.environ['GPUSHARE_COPY'] == '1':\n    sys.exit('torch.OutOfMemoryError: CUDA out of memory.')\n"
    options = (*FIGURES, "--copies", "2", "4", "--", *script(full + "forever()\n"))
    code, events, err = finish(*options)
    assert code == 0, err
    assert [event["ending"] for event in events[:-1]] == ["measured", *["out of memory"] * 3]
    assert "copy 1 of 2 got no GPU memory" in err
    assert "4 copies were not run: 2 did not work" in err
    assert nothing_of_it(gpu, tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("print('no such weights')\nsys.exit(7)\n", r"exited with code 7 after .*\nno such weights"),
        ("os.kill(os.getpid(), signal.SIGSEGV)\n", "was ended by signal 11"),
        ("figure(rate=1)\n", r"exited with code 0 .*: let it run longer, or leave --seconds out"),
        ("print('done')\n", r"exited with code 0 .* and no line that it printed .* had a figure: does --rate-json"),
        ("time.sleep(600)\n", r"printed no figure within 1.5 s \(--start-timeout\)"),
        ("figure(rate=1)\ntime.sleep(600)\n", r"no line with a rate in a window of \d\.\d s"),
    ],
    ids=["fails", "crashes", "ends too early", "prints no figure", "prints nothing", "prints once"],
)
def test_a_program_that_fails_alone_is_an_error_with_its_last_lines(
    gpu: Path, tmp_path: Path, script: Write, text: str, words: str
) -> None:
    code, _, err = finish(*FIGURES, "--start-timeout", "1.5", "--", *script(text))
    assert code == 3
    assert "fails alone, so there is nothing to compare" in err
    assert re.search(words, err), err
    assert nothing_of_it(gpu, tmp_path)


SERVICE = (
    "from gpushare.simulation.client import SimulatedContext\n"
    "context, rate = SimulatedContext.create(), float(os.environ.get('OFFERED_RATE', 2000))\n"
    "while True:\n"
    "    neighbour = int(open(sys.argv[1]).read() or 0) if os.path.exists(sys.argv[1]) else 0\n"
    "    figure(rate=rate, ms=[3 + neighbour / 10])\n"
    "    time.sleep(0.02)\n"
)
"""Its latency rises with the SMs of the job beside it, which the job writes to the file."""
JOB = (
    "from gpushare.simulation.client import SimulatedContext\n"
    "context = SimulatedContext.create()\n"
    "def end(*_):\n"
    "    os.unlink(sys.argv[1])\n"
    "    os._exit(0)\n"
    "signal.signal(signal.SIGTERM, end)\n"
    "open(sys.argv[1], 'w').write(str(context.sms))\n"
    "while True:\n"
    "    figure(rate=context.sms)\n"
    "    time.sleep(0.02)\n"
)


def test_the_most_that_a_job_may_have_beside_a_service_is_found(gpu: Path, tmp_path: Path, script: Write) -> None:
    said, result = str(tmp_path / "sms"), tmp_path / "compare.json"
    service, job = shlex.join([*script(SERVICE), said]), shlex.join([*script(JOB), said])
    options = ("--protect", service, "--beside", job, "--slo", "p99=10ms", "--rate", "50%", "--json", str(result))
    code, events, err = finish(*FIGURES, *options)
    assert code == 0, err
    *runs, verdict = events
    assert [run["mode"] for run in runs[:3]] == ["capacity", "alone", "alone"]
    assert [run["rates"][0][0] for run in runs[:2]] == [[2000.0], [1000.0]], "half of what it can do is asked of it"
    # Of 132 SMs 50 % are 66, which make 9.6 ms; 75 % are 99, which make 12.9 ms.
    assert [run["way"]["percent"] for run in runs[3:]] == [100, 35, 75, 50]
    assert verdict["answer"] == "untimed"
    assert "beside the job as Normal, capped at 50 % of the threads: 9.6 ms, alone 3 ms" in verdict["sentence"]
    assert verdict["share"]["spec"]["clients"]["threads"] == {"default": 50, "max": 100}
    annotations = [pod["metadata"]["annotations"] for pod in verdict["pods"]]
    assert annotations == [{"gpushare.dev/threads": "100"}, {"gpushare.dev/threads": "50"}]
    assert nothing_of_it(gpu, tmp_path)
    code, again, _ = finish("--read", str(result))
    assert code == 0
    assert {key: again[0][key] for key in ("sentence", "share", "pods")} == {
        key: verdict[key] for key in ("sentence", "share", "pods")
    }


def test_a_program_that_never_uses_the_gpu_gets_no_verdict_and_no_copies(
    gpu: Path, tmp_path: Path, script: Write
) -> None:
    options = ("--rate-json", "rate", "--seconds", "2.2", "--warmup", "0", "--copies", "2")
    code, events, err = finish(*options, "--", *script("forever()\n"))
    assert code == 0, err
    assert [event.get("mode") for event in events] == ["alone", None]
    assert events[-1]["sentence"].startswith("No verdict: one copy alone never used the GPU: ")
    assert nothing_of_it(gpu, tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("mode", ["alone", "mps"])
def test_a_signal_ends_everything_and_keeps_what_was_measured(
    gpu: Path, tmp_path: Path, script: Write, number: signal.Signals, mode: str
) -> None:
    result = tmp_path / "compare.json"
    options = ("--repeats", "9", "--seconds", "0.5", "--warmup", "0", "--rate-json", "rate")
    process = start(*options, "--modes", "mps", "--copies", "2", "--json", str(result), "--", *script("forever()\n"))
    assert process.stderr is not None
    while f", {mode}" not in process.stderr.readline():
        assert process.poll() is None
    end = time.monotonic() + SECONDS
    while not running(tmp_path) and time.monotonic() < end:
        time.sleep(0.02)
    process.send_signal(number)
    process.communicate(timeout=SECONDS)
    assert process.returncode == 4
    assert json.loads(result.read_text())["ended"] == "asked to end before the work was done"
    assert nothing_of_it(gpu, tmp_path)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--copies", "1"), "--copies 1: name at least one number above 1"),
        (("--copies", "2", "--beside", "true"), "--copies 2: is for copies of one program"),
        (("--beside", "true", "--rate-json", "rate"), "--beside: give --seconds too"),
        (("--beside", "true") * 8, "--beside: given 8 times: at most 7 times"),
        (("--beside", "'"), '--beside "\'": No closing quotation'),
        (("--beside", " "), "--beside: name a program"),
        (("--slo", "p99=1ms"), "--slo p99=1ms: is of a service: name it by --protect"),
        (("--protect", "true"), "--protect: takes the place of the program that is compared"),
        (("--threads", "0"), "--threads 0: a percentage from 1 to 100"),
        (("--seconds", "5"), "it must print its rate: give --rate-regex or --rate-json"),
        (("--seconds", "-1", "--rate-json", "rate"), "--seconds -1: above 0"),
        (("--windows", "2"), "--windows 2: needs --seconds"),
        (("--warmup", "-1"), "--warmup -1: 0 to"),
        (("--share-name", "A_b"), "--share-name 'A_b'"),
        (("--rate-regex", "("), "--rate-regex '(': no regular expression"),
    ],
)
def test_options_that_make_no_sense_are_refused_by_name(gpu: Path, options: tuple[str, ...], words: str) -> None:
    code, _, err = finish(*options, "--", "true")
    assert code == 2
    assert words in err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "--protect: say what is to hold, by --slo"),
        (("--slo", "p99=20ms"), "--protect: name the one job that is to run beside it, by --beside"),
        (("--slo", "p99=20ms", "--beside", "true"), "--protect: needs --seconds, and --latency-json"),
        (("--slo", "20", *FIGURES, "--beside", "true"), "--slo '20': write p50= or p99="),
        (("--slo", "p99=20ms", *FIGURES, "--beside", "true", "--threads", "50"), "--threads: --protect runs the job"),
        (("--slo", "p99=20ms", *FIGURES, "--beside", "true", "--rate", "x"), "--rate 'x': write requests per second"),
    ],
)
def test_a_service_without_what_its_search_needs_is_refused(gpu: Path, options: tuple[str, ...], words: str) -> None:
    code, _, err = finish("--protect", "true", *options)
    assert code == 2
    assert words in err


def test_a_machine_without_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GPUSHARE_SIMULATION_DIR", str(tmp_path))
    code, _, err = finish("--", "true")
    assert code == 2
    assert "no GPU: NVML is not there" in err


def test_a_program_that_does_not_exist_is_refused(gpu: Path, tmp_path: Path) -> None:
    code, _, err = finish("--", "/none/program")
    assert code == 2
    assert "'/none/program' cannot be started" in err
    assert nothing_of_it(gpu, tmp_path)


def test_an_mps_daemon_of_somebody_else_is_refused(gpu: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = gpu / "pipe"
    pipe.mkdir()
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(pipe))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as daemon:
        daemon.bind(str(pipe / "control"))
        daemon.listen()
        code, _, err = finish("--", "true")
    assert code == 2
    assert f"an MPS daemon runs already, at {pipe}" in err


def test_a_socket_that_nobody_serves_is_no_daemon(gpu: Path, monkeypatch: pytest.MonkeyPatch, script: Write) -> None:
    pipe = gpu / "pipe"
    pipe.mkdir()
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(pipe))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as daemon:
        daemon.bind(str(pipe / "control"))
    code, _, err = finish("--repeats", "1", "--copies", "2", "--modes", "mps", "--", *script("time.sleep(0.1)\n"))
    assert code == 0, err


def test_a_compute_mode_that_forbids_several_processes_is_refused(gpu: Path) -> None:
    monitor = open_monitor()
    assert monitor is not None
    monitor.set_compute_mode("ExclusiveProcess")
    code, _, err = finish("--", "true")
    assert code == 2
    assert "the compute mode of GPU-" in err
    assert "is ExclusiveProcess" in err


def test_a_gpu_that_somebody_uses_is_refused(gpu: Path) -> None:
    context = SimulatedContext.create()
    code, _, err = finish("--", "true")
    context.close()
    assert code == 2
    assert f"PID {os.getpid()}" in err
