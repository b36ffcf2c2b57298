"""`kubectl gpushare check`: each obstacle is found and reported with what to do about it."""

from dataclasses import replace
from typing import Any

import pytest

from gpushare.cli.kubectl.check import Facts, check
from tests.unit.cli.kubectl.cluster_objects import GPU, SILENT, gpu_node, shown


def pod(part: str, ready: bool = True) -> dict[str, Any]:
    condition = {"type": "Ready", "status": str(ready)}
    return {"metadata": {"labels": {"app.kubernetes.io/component": part}}, "status": {"conditions": [condition]}}


def node(runtime: str = "containerd://2.1.0", **status: Any) -> dict[str, Any]:
    state = {"conditions": [{"type": "Ready", "status": "True"}], "nodeInfo": {"containerRuntimeVersion": runtime}}
    return {"metadata": {"name": "n1"}, "status": state | status}


SOUND = Facts(
    version="v1.37.0",
    webhook='Forbidden: admission webhook refused: spec.gpus.products[0]: " " is blank',
    policies=("gpushare-agent", "other"),
    enforced="privileged",
    pods=(pod("operator"), pod("webhook"), pod("agent")),
    nodes=(node(),),
    gpu_nodes={"n1": gpu_node("GPU-0")},
)


def problems(facts: Facts, only: str | None = None) -> list[tuple[str, str]]:
    report = check(facts, only)
    found = [(it["level"], it["message"]) for it in report.data["checks"] if it["level"] != "ok"]
    assert report.code == any(level == "FAIL" for level, _ in found)
    return found


def test_a_sound_cluster_passes_every_check() -> None:
    assert problems(SOUND) == []
    assert "1 GPUs, driver 580.1, 48 MPS clients on each" in shown(check(SOUND, "n1"))


@pytest.mark.parametrize(
    ("facts", "level", "words"),
    [
        (replace(SOUND, version="v1.31.4"), "FAIL", "1.32 or newer"),
        (replace(SOUND, pods=(pod("operator"), pod("webhook"), pod("webhook", False), pod("agent"))), "warn", "1 of 2"),
        (replace(SOUND, pods=(pod("operator"), pod("webhook", False), pod("agent"))), "FAIL", "0 of 1 pods ready"),
        (replace(SOUND, webhook=None), "warn", "does not call the webhook"),
        (replace(SOUND, webhook="InternalError: failed calling webhook: no endpoints"), "FAIL", "does not reach"),
        (replace(SOUND, webhook="Forbidden: you cannot create gpushares"), "warn", "could not be checked"),
        (replace(SOUND, policies=()), "warn", "RBAC alone limits"),
        (replace(SOUND, policies=None), "warn", "may not list"),
        (replace(SOUND, enforced="baseline"), "FAIL", '"baseline"'),
        (replace(SOUND, nodes=(node("containerd://1.7.1"),)), "FAIL", "1.7.2 or newer"),
        (replace(SOUND, nodes=(node(conditions=[]),)), "FAIL", "is not Ready"),
        (replace(SOUND, gpu_nodes={"n1": gpu_node("GPU-0", conditions=[SILENT])}), "FAIL", "AgentSilent: no heartbeat"),
        (replace(SOUND, nodes=(node(allocatable={"nvidia.com/gpu": "8"}),)), "warn", "deploy.device-plugin=false"),
        (
            replace(SOUND, gpu_nodes={"n1": gpu_node("GPU-0", gpus=[GPU | {"uuid": "GPU-0", "migEnabled": True}])}),
            "warn",
            "MIG",
        ),
        (
            replace(SOUND, gpu_nodes={"n1": gpu_node("GPU-0", gpus=[GPU | {"uuid": "GPU-0", "lost": True}])}),
            "FAIL",
            "is lost",
        ),
        (
            replace(
                SOUND,
                gpu_nodes={
                    "n1": gpu_node(
                        "GPU-0", gpus=[GPU | {"uuid": "GPU-0", "computeMode": "Prohibited"}], computeModePolicy="Leave"
                    )
                },
            ),
            "warn",
            "Prohibited",
        ),
    ],
)
def test_each_obstacle_is_found_and_reported(facts: Facts, level: str, words: str) -> None:
    ((found, message),) = problems(facts)
    assert found == level
    assert words in message


def test_a_compute_mode_of_the_administrators_is_no_obstacle_where_it_is_left_to_him() -> None:
    exclusive = [GPU | {"uuid": "GPU-0", "computeMode": "ExclusiveProcess"}]
    assert problems(replace(SOUND, gpu_nodes={"n1": gpu_node("GPU-0", gpus=exclusive)}))[0][0] == "warn"
    assert (
        problems(replace(SOUND, gpu_nodes={"n1": gpu_node("GPU-0", gpus=exclusive, computeModePolicy="Leave")})) == []
    )


def test_a_node_that_is_asked_for_by_name_is_reported_even_without_gpus() -> None:
    assert problems(replace(SOUND, gpu_nodes={}), "n1")[0][1].startswith("no agent reports it")
    assert ("FAIL", "there is no such node") in problems(SOUND, "n9")
