"""The MPS pods: what they may and what they must never."""

from dataclasses import replace
from typing import Any

import pytest

from gpushare.api.gpushare import GpuShare
from gpushare.controller.daemonset import RENDERED, daemon_set
from gpushare.controller.settings import OperatorSettings


def share(**clients: Any) -> GpuShare:
    spec = {"clients": {"perGpu": 4, "memory": {"default": "16Gi"}} | clients}
    return GpuShare.model_validate({"metadata": {"name": "inference", "uid": "u"}, "spec": spec})


@pytest.fixture
def pod(settings: OperatorSettings) -> dict[str, Any]:
    spec: dict[str, Any] = daemon_set(share(), settings)["spec"]["template"]["spec"]
    return spec


def test_a_change_of_limits_never_changes_the_pods(settings: OperatorSettings) -> None:
    changed = share(perGpu=8, threads={"default": 5, "max": 10}, memory={"default": "1Gi"}, priority="BelowNormal")
    assert daemon_set(changed, settings) == daemon_set(share(), settings)


def test_an_upgrade_is_told_by_the_annotation(settings: OperatorSettings) -> None:
    old, new = daemon_set(share(), settings), daemon_set(share(), replace(settings, image="gpushare:next"))
    assert old["metadata"]["annotations"][RENDERED] != new["metadata"]["annotations"][RENDERED]


def test_pods_are_replaced_only_when_deleted(settings: OperatorSettings) -> None:
    assert daemon_set(share(), settings)["spec"]["updateStrategy"] == {"type": "OnDelete"}


def test_nothing_owns_the_daemon_set_so_that_no_collector_ends_it(settings: OperatorSettings) -> None:
    assert "ownerReferences" not in daemon_set(share(), settings)["metadata"]


def test_the_only_host_path_is_our_own(pod: dict[str, Any]) -> None:
    paths = [volume["hostPath"] for volume in pod["volumes"] if "hostPath" in volume]
    assert paths == [{"path": "/run/gpushare", "type": "DirectoryOrCreate"}]


def test_the_container_has_no_privilege(pod: dict[str, Any]) -> None:
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False


def test_nothing_but_its_end_ends_it(pod: dict[str, Any], settings: OperatorSettings) -> None:
    (container,) = pod["containers"]
    assert "livenessProbe" not in container
    assert pod["priorityClassName"] == "system-node-critical"
    assert pod["tolerations"] == [{"operator": "Exists"}]
    assert pod["terminationGracePeriodSeconds"] == settings.drain_seconds
    assert container["resources"]["requests"] == container["resources"]["limits"], "Guaranteed"


def test_it_runs_where_its_share_has_gpus(pod: dict[str, Any]) -> None:
    assert pod["nodeSelector"] == {"share.gpushare.dev/inference": "true"}
    assert pod["containers"][0]["resources"]["limits"]["internal.gpushare.dev/mps"] == "1"


@pytest.mark.parametrize("simulated", [True, False])
def test_simulation_is_passed_on_only_where_it_is_on(settings: OperatorSettings, simulated: bool) -> None:
    rendered = daemon_set(share(), replace(settings, simulation=simulated))
    command = rendered["spec"]["template"]["spec"]["containers"][0]["command"]
    assert ("--simulation" in command) is simulated
    assert command[:4] == ["gpushare", "mps-supervisor", "--share", "inference"]
