"""The MPS pods: what they may do and what they must never do, and how they are read back."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Literal

import pytest

from gpushare.api.gpushare import GpuShare
from gpushare.controller.daemonset import daemon_set, mps_pod, template_of
from gpushare.controller.settings import OperatorSettings
from gpushare.controller.writes import stamp_of
from gpushare.planner import Template
from tests.unit.controller.mps_pods import DAEMON_SET, broken_broker, container
from tests.unit.controller.mps_pods import pod as mps_pod_object


def share(**clients: Any) -> GpuShare:
    spec = {"clients": {"perGpu": 4, "memory": {"default": "16Gi"}} | clients}
    return GpuShare.model_validate({"metadata": {"name": "inference", "uid": "u"}, "spec": spec})


@pytest.fixture
def pod(settings: OperatorSettings) -> dict[str, Any]:
    spec: dict[str, Any] = daemon_set(share(), settings)["spec"]["template"]["spec"]
    return spec


def test_a_change_of_limits_never_changes_the_pods(settings: OperatorSettings) -> None:
    changed = share(perGpu=8, threads={"default": 5, "max": 10}, memory={"default": "1Gi"})
    assert daemon_set(changed, settings) == daemon_set(share(), settings)


def test_an_upgrade_is_told_by_the_annotation(settings: OperatorSettings) -> None:
    old, new = daemon_set(share(), settings), daemon_set(share(), replace(settings, image="gpushare:next"))
    assert stamp_of(old) != stamp_of(new)


def test_pods_are_replaced_only_when_deleted(settings: OperatorSettings) -> None:
    assert daemon_set(share(), settings)["spec"]["updateStrategy"] == {"type": "OnDelete"}


def test_nothing_owns_the_daemon_set_so_that_no_collector_ends_it(settings: OperatorSettings) -> None:
    assert "ownerReferences" not in daemon_set(share(), settings)["metadata"]


def test_the_only_host_path_is_our_own(pod: dict[str, Any]) -> None:
    paths = [volume["hostPath"] for volume in pod["volumes"] if "hostPath" in volume]
    assert paths == [{"path": "/run/gpushare", "type": "DirectoryOrCreate"}]


def with_capabilities(*added: str) -> dict[str, Any]:
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"], "add": list(added)},
    }


def test_its_containers_may_pass_descriptors_and_the_broker_its_user(pod: dict[str, Any]) -> None:
    supervisor, broker = pod["containers"]
    assert supervisor["securityContext"] == with_capabilities("SYS_RESOURCE")
    assert broker["securityContext"] == with_capabilities("SYS_RESOURCE", "SETUID", "SETGID")
    assert [mount["mountPath"] for mount in broker["volumeMounts"]] == ["/run/gpushare"]
    assert "internal.gpushare.dev/mps" not in broker["resources"]["limits"], "it gets no device"
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False


def test_nothing_but_its_end_ends_it(pod: dict[str, Any], settings: OperatorSettings) -> None:
    for part in pod["containers"]:
        assert "livenessProbe" not in part
        assert part["resources"]["requests"]["memory"] == part["resources"]["limits"]["memory"]
    assert pod["priorityClassName"] == "system-node-critical"
    assert pod["tolerations"] == [{"operator": "Exists"}]
    assert pod["terminationGracePeriodSeconds"] == settings.drain_seconds


@pytest.mark.parametrize("limit", [None, "4"])
def test_its_daemons_start_without_a_cpu_limit_unless_one_was_set(
    settings: OperatorSettings, limit: str | None
) -> None:
    rendered = daemon_set(share(), replace(settings, mps_cpu="300m", mps_cpu_limit=limit or ""))
    supervisor, broker = rendered["spec"]["template"]["spec"]["containers"]
    assert supervisor["resources"]["requests"]["cpu"] == "300m"
    assert supervisor["resources"]["limits"].get("cpu") == limit
    assert broker["resources"]["limits"]["cpu"], "what tenants reach is limited always"


def test_its_selinux_options_are_the_runtimes_unless_some_were_set(settings: OperatorSettings) -> None:
    for options in ({}, {"type": "spc_t"}):
        made = daemon_set(share(), replace(settings, mps_selinux=options))
        assert made["spec"]["template"]["spec"]["securityContext"].get("seLinuxOptions", {}) == options
        assert (stamp_of(made) == stamp_of(daemon_set(share(), settings))) is (not options)


def test_it_runs_where_its_share_has_gpus(pod: dict[str, Any]) -> None:
    assert pod["nodeSelector"] == {"share.gpushare.dev/inference": "true"}
    assert pod["containers"][0]["resources"]["limits"]["internal.gpushare.dev/mps"] == "1"


@pytest.mark.parametrize("simulated", [True, False])
def test_simulation_is_passed_on_only_where_it_is_on(settings: OperatorSettings, simulated: bool) -> None:
    rendered = daemon_set(share(), replace(settings, simulation=simulated))
    command = rendered["spec"]["template"]["spec"]["containers"][0]["command"]
    assert ("--simulation" in command) is simulated
    assert command[:4] == ["gpushare", "mps-supervisor", "--share", "inference"]


def test_the_default_protocol_leaves_templates_alone_and_auto_is_passed_on(
    settings: OperatorSettings,
) -> None:
    """A flag that is always there would replace every MPS pod at an upgrade of the operator."""

    def command(protocol: Literal["V2", "Auto"]) -> list[str]:
        made = daemon_set(share(), replace(settings, mps_protocol=protocol))
        return list(made["spec"]["template"]["spec"]["containers"][0]["command"])

    assert "--mps-protocol" not in command("V2")
    auto = command("Auto")
    assert auto[auto.index("--mps-protocol") + 1] == "Auto"
    assert stamp_of(daemon_set(share(), replace(settings, mps_protocol="V2"))) == stamp_of(
        daemon_set(share(), settings)
    )


def test_a_running_pod_counts_from_the_start_of_its_container() -> None:
    owner, read = mps_pod(mps_pod_object(status=container(running={"startedAt": "2026-01-02T00:00:00Z"})))
    assert owner == DAEMON_SET
    assert read is not None
    assert (read.share, read.node, read.template, read.running) == ("a", "n1", "t1", True)
    assert read.since == datetime(2026, 1, 2, tzinfo=UTC)


UNSCHEDULABLE = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "Insufficient cpu"}]
TROUBLE: dict[str, tuple[dict[str, Any], str, bool]] = {
    "an image that cannot be pulled is stuck": (
        container(waiting={"reason": "ImagePullBackOff", "message": "not found"}), "ImagePullBackOff: not found", True),
    "the first failure to pull may pass": (container(waiting={"reason": "ErrImagePull"}), "ErrImagePull", False),
    "a container that is being made is in no trouble yet": (
        container(waiting={"reason": "ContainerCreating"}), "ContainerCreating", False),
    "a crash loop is stuck": (container(waiting={"reason": "CrashLoopBackOff"}), "CrashLoopBackOff", True),
    "the scheduler's words are told": (
        {"conditions": UNSCHEDULABLE}, "Unschedulable: Insufficient cpu", False),
    "nothing is known yet": ({}, "", False),
}  # fmt: skip


@pytest.mark.parametrize(("status", "words", "stuck"), TROUBLE.values(), ids=TROUBLE)
def test_a_pod_that_does_not_run_tells_why(status: dict[str, Any], words: str, stuck: bool) -> None:
    _, read = mps_pod(mps_pod_object(status=status))
    assert read is not None
    assert (read.running, read.trouble, read.stuck) == (False, words, stuck)


def test_a_pod_that_is_not_scheduled_is_of_the_node_that_it_is_for() -> None:
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n7"]}]}]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    _, read = mps_pod(mps_pod_object(nodeName="", affinity=affinity))
    assert read is not None
    assert read.node == "n7"


def test_a_template_is_observed_once_the_controller_saw_its_generation() -> None:
    annotations = {"metadata": {"annotations": {"gpushare.dev/template": "t1"}}}
    live = {"metadata": {"generation": 2}, "spec": {"template": annotations}, "status": {"observedGeneration": 1}}
    assert template_of(live) == Template("t1", observed=False)
    assert template_of(live | {"status": {"observedGeneration": 2}}) == Template("t1", observed=True)
    assert template_of({"metadata": {}, "spec": {}}) is None


def test_a_broker_that_cannot_start_is_the_trouble_of_its_pod() -> None:
    waiting = {"reason": "CrashLoopBackOff", "message": "back-off 10s"}
    read = mps_pod(mps_pod_object(status=broken_broker(waiting=waiting)))
    assert read is not None
    assert (read[1].running, read[1].stuck, read[1].trouble) == (True, True, "CrashLoopBackOff: back-off 10s")


def _policy_has_changed(spec: dict[str, Any], field: str) -> None:
    supervisor = spec["containers"][0]
    match field:
        case "hostPID":
            del spec["hostPID"]
        case "runAsUser":
            supervisor["securityContext"]["runAsUser"] = 1000
        case "capabilities":
            supervisor["securityContext"]["capabilities"] = {"drop": ["ALL"]}
        case "command":
            supervisor["command"] = ["/sidecar", *supervisor["command"]]
        case "hostPath /run/gpushare":
            spec["volumes"] = spec["volumes"][1:]
        case "resource internal.gpushare.dev/mps":
            del supervisor["resources"]["limits"]["internal.gpushare.dev/mps"]


@pytest.mark.parametrize(
    "field",
    [
        "",
        "hostPID",
        "runAsUser",
        "capabilities",
        "command",
        "hostPath /run/gpushare",
        "resource internal.gpushare.dev/mps",
    ],
)
def test_a_field_that_a_policy_changed_is_named(pod: dict[str, Any], field: str) -> None:
    _policy_has_changed(pod, field)
    read = mps_pod({"metadata": {"name": "p"}, "spec": {**pod, "nodeName": "n"}})
    assert read is not None
    assert read[1].trouble == (
        f"a policy of the cluster has changed its {field}; leave gpushare's namespace out of it" if field else ""
    )
