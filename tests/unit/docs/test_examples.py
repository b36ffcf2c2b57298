"""The workload's examples: one for each scenario, with arguments that it takes, in pods that `restricted` lets in."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from gpushare_workload import cli
from gpushare_workload.scenarios import SCENARIOS
from localcluster.paths import REPOSITORY

EXAMPLES = REPOSITORY / "workload" / "examples"
FRAMEWORKS = sorted((EXAMPLES / "frameworks").glob("*.yaml"))
OURS = sorted({*EXAMPLES.glob("*/*.yaml")} - {*FRAMEWORKS})
README_SHARE = yaml.safe_load((REPOSITORY / "examples" / "inference.yaml").read_text())["metadata"]["name"]


def templates(path: Path) -> list[dict[str, Any]]:
    return [job["spec"]["template"]["spec"] for job in yaml.safe_load_all(path.read_text())]


def containers(path: Path) -> list[dict[str, Any]]:
    return [container for spec in templates(path) for container in spec["containers"]]


@pytest.mark.parametrize("name", list(SCENARIOS))
def test_every_scenario_has_an_example(name: str) -> None:
    runs = [container["args"][:2] for path in OURS for container in containers(path)]
    assert ["run", name] in runs


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_the_arguments_of_an_example_are_those_that_the_program_takes(path: Path) -> None:
    for container in containers(path):
        assert all(isinstance(argument, str) for argument in container["args"])
        cli.parser().parse_args(container["args"])


@pytest.mark.parametrize("path", [*OURS, *FRAMEWORKS], ids=lambda path: path.name)
def test_an_example_asks_for_one_slot_of_the_readmes_share_alone(path: Path) -> None:
    whole_gpus = path.name == "ddp.yaml"
    for spec in templates(path):
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert not {"hostPID", "hostIPC", "hostNetwork", "runtimeClassName"} & set(spec)
        assert not any("hostPath" in volume for volume in spec.get("volumes", []))
    for container in containers(path):
        wanted = {"nvidia.com/gpu": 2} if whole_gpus else {f"gpushare.dev/{README_SHARE}": 1}
        assert container["resources"]["limits"] == wanted
        assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
