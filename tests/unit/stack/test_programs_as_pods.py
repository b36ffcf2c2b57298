"""A client's pod is made to run a program of the machine."""

from pathlib import Path

import pytest

from tests.cluster.harness import client_pod
from tests.gpu.stack.suites import parts, programs


@pytest.mark.parametrize("program", [(), ("yolos.py",), ("decode.py", "--size", "medium")])
def test_the_program_gets_its_own_arguments_and_no_others(program: tuple[str, ...]) -> None:
    pod = client_pod("program", "team", "workload:1", "a-share", ("depart",))
    pod["spec"]["volumes"] = [{"name": "of-the-way"}]
    parts.run_program(pod, program)
    [container] = pod["spec"]["containers"]
    assert "args" not in container
    assert tuple(container["command"][2:]) == program[1:] or not program
    assert pod["spec"]["volumes"][0] == {"name": "of-the-way"}, "what a way of sharing has added stays"


def test_the_libraries_of_pythons_packages_come_before_the_systems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nvidia/cudnn/lib").mkdir(parents=True)
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    assert parts.of_the_machine()["LD_LIBRARY_PATH"] == f"{tmp_path}/nvidia/cudnn/lib:{parts.MACHINE}"


@pytest.mark.parametrize("there", [True, False])
def test_cudas_toolkit_is_mounted_where_the_machine_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    assembler = tmp_path / "cuda-13/bin/ptxas"
    assembler.parent.mkdir(parents=True)
    assembler.touch(0o755 if there else 0o644)
    monkeypatch.setenv("PATH", str(assembler.parent))
    monkeypatch.setattr(parts, "TOOLKIT", "/nowhere")
    pod = client_pod("program", "team", "workload:1", "a-share", ())
    parts.run_program(pod, ("jax_train.py",))
    [container] = pod["spec"]["containers"]
    mounted = [it["mountPath"] for it in container["volumeMounts"] if it["name"] == "toolkit"]
    assert mounted == (["/nowhere"] if there else [])
    assert [it["hostPath"]["path"] for it in pod["spec"]["volumes"] if it["name"] == "toolkit"] == (
        [str(tmp_path / "cuda-13")] if there else []
    )


@pytest.mark.parametrize(
    ("endings", "whole"),
    [
        ({(1,): "measured", (2,): "measured", (4,): "measured"}, True),
        ({(1,): "measured", (2,): "measured", (4,): "failed"}, False),
        ({(2,): "measured", (4,): "measured"}, False),
        ({}, False),
    ],
)
def test_a_program_is_measured_with_one_copy_and_each_number(endings: dict[tuple[int], str], whole: bool) -> None:
    rows = [{"copies": list(copies), "ending": ending} for copies, ending in endings.items()]
    assert programs.measured(programs.Program(copies=(2, 4)), {"rows": rows}) is whole
