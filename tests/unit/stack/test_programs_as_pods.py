"""A client's pod is made to run a program of the machine."""

import pytest

from tests.cluster.harness import client_pod
from tests.gpu.stack.suites import parts


@pytest.mark.parametrize("program", [(), ("yolos.py",), ("decode.py", "--size", "medium")])
def test_the_program_gets_its_own_arguments_and_no_others(program: tuple[str, ...]) -> None:
    pod = client_pod("program", "team", "workload:1", "a-share", ("depart",))
    pod["spec"]["volumes"] = [{"name": "of-the-way"}]
    parts.run_program(pod, program)
    [container] = pod["spec"]["containers"]
    assert "args" not in container
    assert tuple(container["command"][2:]) == program[1:] or not program
    assert pod["spec"]["volumes"][0] == {"name": "of-the-way"}, "what a way of sharing has added stays"
