"""The library of workload/busytime beside a program whose kernels are known, in a time of its own (fake_cupti.c)."""

import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpushare.agent.process.busy_thread import BusyReader
from localcluster.paths import REPOSITORY

HERE = Path(__file__).parent
SOURCE = REPOSITORY / "workload" / "busytime" / "busytime.c"
BUDGET = 2000
"""Records a second that the library takes, in the long run."""
BEFORE_IT_KNOWS = 60_000
"""Records of the first tenth of a second of the quickest program here, and then some."""
MINUTE = 60.0
HOUR = 3600.0


@dataclass(frozen=True)
class Built:
    library: Path
    program: Path

    def run(self, seconds: float, *streams: str, **variables: str) -> dict[str, Any]:
        """`streams`: first launch, period, seconds of a kernel, and on, cycle, graph."""
        words = [word for stream in streams for word in stream.split()]
        done = subprocess.run(
            [self.program, self.library, str(seconds), *words],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
            env=os.environ | variables,
        )  # fmt: skip
        assert done.returncode == 0, f"exit code {done.returncode}: {done.stderr}"
        answer: dict[str, Any] = json.loads(done.stdout) if done.stdout else {}
        return answer

    def told_and_true(self, seconds: float, *streams: str) -> tuple[float, float]:
        """Busy seconds by the library, within its budget, and by the program's own count."""
        answer = self.run(seconds, *streams)
        assert answer["lost"] == 0
        assert answer["records"] <= BUDGET * seconds + BEFORE_IT_KNOWS
        match = re.fullmatch(r"gpubusy([0-9a-f]{8})", answer["name"])
        assert match, answer["name"]
        return int(match[1], 16) / 100, answer["truly"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    out = tmp_path_factory.mktemp("busytime")
    strict = ["-O1", "-Wall", "-Wextra", "-Werror"]
    shared = ["-shared", "-fPIC"]
    library, fake, program = out / "busytime.so", out / "libcupti.so.13", out / "program"
    for options in (
        [*shared, "-fvisibility=hidden", "-o", library, SOURCE],
        [*shared, "-Wl,-soname,libcupti.so.13", "-o", fake, HERE / "fake_cupti.c"],
        ["-o", program, HERE / "program.c", fake, f"-Wl,-rpath,{out}"],
    ):
        subprocess.run([compiler, *strict, *map(str, options)], check=True, timeout=60)
    return Built(library, program)


def test_long_kernels_are_listened_to_all_the_time_and_counted_exactly(built: Built) -> None:
    told, true = built.told_and_true(MINUTE, "0 0.1 0.03 0 0 0")
    assert told == pytest.approx(true, abs=0.3)  # those of the last buffer


@pytest.mark.parametrize(
    "streams",
    [
        pytest.param(["0 15e-6 5e-6 0 0 0"], id="launch and wait"),
        pytest.param(["0 3e-6 2e-6 0 0 0"], id="330,000 a second"),
        pytest.param(["0 0.0004 0.0002 0 0 0"], id="a little above the budget"),
        pytest.param(["0 20e-6 20e-6 0 0 0", "0 20e-6 20e-6 0 0 0"], id="two queues that are never empty"),
    ],
)
def test_short_kernels_are_counted_from_windows_that_stand_for_the_time(built: Built, streams: list[str]) -> None:
    told, true = built.told_and_true(MINUTE, *streams)
    assert told == pytest.approx(true, rel=0.03)


@pytest.mark.parametrize("burst", ["1 7", "0.05 0.7", "0.01 0.2", "0.3 31"])
def test_bursts_are_neither_favoured_nor_missed(built: Built, burst: str) -> None:
    """So many seconds of short kernels in every so many: the windows must not keep step with them."""
    told, true = built.told_and_true(HOUR, f"0 15e-6 5e-6 {burst} 0")
    assert told == pytest.approx(true, rel=0.04)


def test_kernels_of_several_streams_at_the_same_time_count_once(built: Built) -> None:
    told, true = built.told_and_true(MINUTE, "0 0.01 0.004 0 0 0", "0.002 0.01 0.004 0 0 0")
    assert true == pytest.approx(0.6 * MINUTE, rel=0.01)
    assert told == pytest.approx(true, rel=0.03)


def test_a_kernel_of_many_seconds_counts_once_it_has_ended(built: Built) -> None:
    told, true = built.told_and_true(MINUTE, "1 20 10 0 0 0")
    assert told == pytest.approx(true, abs=0.02)


def test_graphs_count(built: Built) -> None:
    told, true = built.told_and_true(MINUTE, "0 0.01 0.005 0 0 1")
    assert told == pytest.approx(true, abs=0.3)


def test_a_program_without_a_kernel_is_not_busy(built: Built) -> None:
    assert built.told_and_true(MINUTE) == (0, 0)


def test_the_agent_reads_from_proc_what_the_library_says(built: Built) -> None:
    command = [built.program, built.library, str(MINUTE), *["1", "20", "10", "0", "0", "0"]]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline()
        assert BusyReader().read(program.pid, 1) == 30


def test_the_thread_takes_no_signal_of_the_program(built: Built) -> None:
    assert built.run(1)["blocks_sigterm"] is True


@pytest.mark.parametrize("call", ["register", "enable"])
def test_without_a_cupti_that_works_the_program_runs_on_and_the_thread_says_so(built: Built, call: str) -> None:
    assert built.run(1, FAKE_CUPTI_REFUSES=call)["name"] == "gpubusy-nocupti"


def test_at_the_exit_of_the_program_no_call_is_under_way_and_no_forked_child_waits_for_one(built: Built) -> None:
    """CUPTI would find no driver any more. The fake aborts then."""
    for _ in range(10):
        built.run(0, "0 0.01 0.001 0 0 0")
