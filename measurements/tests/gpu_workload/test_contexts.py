"""A context and a fork: what each case is expected to say, and the same cases on a simulated GPU under MPS."""

import os
import sys
from collections.abc import Callable
from typing import Any

import pytest

from measurements.gpu.workload import contexts
from measurements.gpu.workload.contexts import CASES, FORK, ContextCase, answer_of, run_case
from tests.unit.simulation.conftest import daemon, driver

__all__ = ["daemon", "driver"]

TOUCH = (
    "import os\n    from gpushare.simulation.client import SimulatedContext\n"
    "    SimulatedContext.create(os.environ).close()\n    return 6.0"
)


def forked(first: str, touch: str = TOUCH) -> dict[str, Any]:
    return answer_of(FORK.format(touch=touch, before=first), os.environ)


@pytest.mark.usefixtures("driver")
def test_a_child_forked_after_a_context_gets_error_3(daemon: Callable[..., Any]) -> None:
    daemon()
    said = forked("touch()")
    assert "cudaErrorInitializationError (3)" in said["child"]
    assert said["parent"] == 6.0


@pytest.mark.usefixtures("driver")
def test_a_context_made_after_the_fork_is_each_process_own(daemon: Callable[..., Any]) -> None:
    daemon()
    assert forked("") == {"child": 6.0, "parent": 6.0}


def case(name: str) -> ContextCase:
    return next(case for case in CASES if case.name == name)


@pytest.mark.parametrize(
    ("name", "said", "held"),
    [
        ("cupy: a context, then a fork", {"child": "CUDARuntimeError: 3", "parent": 6.0}, True),
        ("cupy: a context, then a fork", {"child": 6.0, "parent": 6.0}, False),
        ("pycuda: a fork, then a context in each", {"child": 6.0, "parent": 6.0}, True),
        ("pycuda: a fork, then a context in each", {"child": "LogicError", "parent": 6.0}, False),
        ("cupy: device 1 by its index, without CUDA_VISIBLE_DEVICES", {"total": 6.0, "contexts_on": [0, 1]}, True),
        ("cupy: device 1 by its index, without CUDA_VISIBLE_DEVICES", {"total": 6.0, "contexts_on": [0]}, False),
    ],
)
def test_a_case_says_whether_it_was_as_expected(name: str, said: dict[str, Any], held: bool) -> None:
    assert case(name).expected(said) is held


def test_a_case_without_its_library_or_gpus_is_left_out_with_what_it_lacks() -> None:
    lacking = ContextCase("n", "", ("no_such_module",), lambda _: True, gpus=2)
    assert run_case(lacking, os.environ, gpus=1) == {"absent": ["no_such_module", "2 GPUs"], "as_expected": None}


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("raise SystemExit('no GPU')", "exit code 1: no GPU"),
        ("print('no JSON')", "exit code 0: "),
        ("import time; time.sleep(60)", "no end within 1 s"),
    ],
)
def test_a_program_that_says_nothing_is_an_error(program: str, words: str) -> None:
    said = answer_of(program, os.environ, seconds=1.0 if "sleep" in program else 60.0)
    assert said == {"error": words}


def test_every_program_can_be_compiled() -> None:
    for program in (contexts.HOLD, *(case.program for case in CASES)):
        compile(program, "case", "exec")
    assert sys.executable
