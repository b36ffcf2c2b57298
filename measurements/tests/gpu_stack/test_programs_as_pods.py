"""A client's pod is made to run a program of the machine."""

from pathlib import Path

import pytest

from measurements.gpu.stack.suites import parts
from measurements.gpu.stack.suites.speed import programs
from tests.cluster.harness import client_pod


@pytest.mark.parametrize("program", [(), ("yolos.py",), ("decode.py", "--size", "medium")])
def test_the_program_gets_its_own_arguments_and_no_others(program: tuple[str, ...]) -> None:
    pod = client_pod("program", "team", "workload:1", "a-share", ("depart",))
    pod["spec"]["volumes"] = [{"name": "of-the-way"}]
    parts.run_program(pod, program)
    [container] = pod["spec"]["containers"]
    assert "args" not in container
    assert tuple(container["command"][2:]) == program[1:] or not program
    assert pod["spec"]["volumes"][0] == {"name": "of-the-way"}, "what a way of sharing has added stays"


def test_the_cuda_libraries_of_pythons_packages_are_found(tmp_path: Path) -> None:
    for folder in ("nvidia/cudnn/lib", "nvidia/cu13/lib", "nvidia/cu13/include", "torch/lib"):
        (tmp_path / folder).mkdir(parents=True)
    assert parts.libraries_of(tmp_path) == [f"{tmp_path}/nvidia/cu13/lib", f"{tmp_path}/nvidia/cudnn/lib"]


@pytest.mark.parametrize(("mode", "runs"), [(0o755, True), (0o644, False)])
def test_cudas_toolkit_is_where_its_assembler_is(tmp_path: Path, mode: int, runs: bool) -> None:
    assembler = tmp_path / "cuda-13/bin/ptxas"
    assembler.parent.mkdir(parents=True)
    assembler.touch(mode)
    (tmp_path / "cuda").symlink_to(tmp_path / "cuda-13")
    assert parts.toolkit(f"/nowhere:{tmp_path}/cuda/bin") == (f"{tmp_path}/cuda-13" if runs else None)


@pytest.mark.parametrize(
    ("copies", "endings", "whole"),
    [
        ([2, 4], ["measured", "measured", "measured"], True),
        ([2, 4], ["measured", "measured"], True),  # four were left out: two brought nothing
        ([2, 4], ["measured", "measured", "failed"], False),
        ([2, 4], ["failed"], False),
        ([2, 4], ["measured"], False),
        ([4], ["measured", "measured"], False),
    ],
)
def test_a_program_is_measured_by_a_trial_of_all_its_copies(copies: list[int], endings: list[str], whole: bool) -> None:
    rows = [{"ending": ending} for ending in endings]
    answer = {"plan": {"copies": copies, "repeats": 3}, "rows": rows}
    assert programs.measured(programs.Program(copies=(2, 4), repeats=3), answer) is whole


@pytest.mark.parametrize(("repeats", "cpu", "same"), [(3, "2", True), (1, "2", False), (3, "", False), (3, "4", False)])
def test_a_trial_of_another_request_is_not_of_the_program(repeats: int, cpu: str, same: bool) -> None:
    rows = [{"ending": "measured"}, {"ending": "measured"}]
    answer = {"plan": {"copies": [4], "repeats": repeats}, "rows": rows, **({"cpu_of_a_pod": cpu} if cpu else {})}
    assert programs.measured(programs.Program(copies=(4,), repeats=3, cpu="2"), answer) is same


def test_a_program_without_a_trial_is_not_measured() -> None:
    assert not programs.measured(programs.Program(), {})
