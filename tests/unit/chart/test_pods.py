"""Each pod of the chart: least rights, nothing of the node beyond a short list, one image, room among others."""

import copy
import json

import pytest

from tests.unit.chart.rendered import (
    CHART,
    HOST_PATHS,
    UNPRIVILEGED,
    VARIANTS,
    containers,
    documents,
    every_variant,
    helm,
    named,
    needs_helm,
    of_kind,
    workloads,
)

pytestmark = needs_helm


@every_variant
def test_every_container_is_bounded_and_has_a_read_only_root(variant: str) -> None:
    for name, container in containers(variant):
        assert container["resources"]["requests"]["cpu"], name
        assert container["resources"]["limits"]["memory"], name
        assert container["securityContext"]["readOnlyRootFilesystem"] is True, name


@every_variant
def test_of_a_part_that_ends_its_last_words_are_in_the_pods_status(variant: str) -> None:
    for workload in of_kind(variant, "Deployment", "DaemonSet"):
        name = workload["metadata"]["name"]
        if name != "gpushare-simulated-driver":
            for container in workload["spec"]["template"]["spec"]["containers"]:
                assert container.get("terminationMessagePolicy") == "FallbackToLogsOnError", name


@pytest.mark.parametrize("root", ["/var/lib/kubelet", "/var/lib/k0s/kubelet"])
def test_device_plugins_stay_where_every_kubelet_has_them(root: str) -> None:
    """Whatever its --root-dir says; all else of the kubelet's moves with it, at the same place in the agent."""
    text = helm("template", "g", str(CHART), f"--set=agent.kubeletDir={root}").stdout
    (spec,) = [item["spec"]["template"]["spec"] for item in documents(text) if item["kind"] == "DaemonSet"]
    (agent,) = spec["containers"]
    on_node = {volume["name"]: volume["hostPath"]["path"] for volume in spec["volumes"]}
    of_kubelet = {name: path for name, path in on_node.items() if "kubelet" in path}
    assert of_kubelet == {
        "device-plugins": "/var/lib/kubelet/device-plugins",
        "pod-resources": f"{root}/pod-resources",
        "plugins-registry": f"{root}/plugins_registry",
        "plugin": f"{root}/plugins/gpushare.dev",
    }
    mounted = {mount["name"]: mount["mountPath"] for mount in agent["volumeMounts"]}
    assert {name: mounted[name] for name in of_kubelet} == of_kubelet
    assert f"--kubelet-dir={root}" in agent["args"]


@every_variant
def test_no_probe_starts_a_program_again_and_again(variant: str) -> None:
    """Each takes a tenth of a second of the node's CPU time; a start-up probe ends with its first success."""
    for name, container in containers(variant):
        for probe in ("livenessProbe", "readinessProbe"):
            assert "exec" not in container.get(probe, {}), name


@every_variant
def test_every_unprivileged_container_drops_all_capabilities(variant: str) -> None:
    for name, container in containers(variant):
        security = container["securityContext"]
        if name == "gpushare-agent" and variant not in UNPRIVILEGED:
            assert security == {"privileged": True, "readOnlyRootFilesystem": True}
            continue
        added = {"add": UNPRIVILEGED[variant]} if name == "gpushare-agent" else {}
        assert security["capabilities"] == {"drop": ["ALL"], **added}, name
        assert security["allowPrivilegeEscalation"] is False, name
        assert "privileged" not in security, name


def test_an_unprivileged_agent_gets_device_nodes_from_the_runtime() -> None:
    for variant, runtime in (("default", None), ("unprivileged", "nvidia"), ("everything", "nvidia-cdi")):
        pod = dict(workloads(variant))["gpushare-agent"]
        environment = {entry["name"]: entry.get("value") for entry in pod["containers"][0]["env"]}
        assert pod.get("runtimeClassName") == runtime
        assert environment["NVIDIA_VISIBLE_DEVICES"] == ("all" if runtime else "void")
        assert environment.get("NVIDIA_DRIVER_CAPABILITIES") == ("utility" if runtime else None)


def test_a_simulated_agent_runs_with_the_privileges_of_a_real_one() -> None:
    """Else the tests on a cluster, whose GPUs are simulated, would say nothing about production."""
    simulated, real = (
        copy.deepcopy(dict(workloads(variant))["gpushare-agent"]) for variant in ("simulated", "default")
    )
    for pod in (simulated, real):
        (container,) = pod["containers"]
        ours = {"run", "device-plugins", "pod-resources", "plugins-registry", "cdi"}
        pod["volumes"] = [volume for volume in pod["volumes"] if volume["name"] in ours]
        container["volumeMounts"] = [mount for mount in container["volumeMounts"] if mount["name"] in ours]
        container["args"] = [
            argument for argument in container["args"] if not argument.startswith(("--simulation", "--driver-"))
        ]
    assert simulated == real


@every_variant
def test_every_pod_runs_under_seccomp_and_only_node_parts_as_root(variant: str) -> None:
    for name, pod in workloads(variant):
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        on_node = name in HOST_PATHS
        assert pod["securityContext"].get("runAsNonRoot", False) is not on_node, name
        assert pod.get("hostPID", False) is on_node, name
        assert not {"hostNetwork", "hostIPC"} & pod.keys(), name


@every_variant
def test_no_pod_sees_more_of_the_node_than_listed(variant: str) -> None:
    for name, pod in workloads(variant):
        for volume in pod.get("volumes", []):
            assert volume.keys() == {"name", "hostPath"}, name
            assert volume["hostPath"]["path"] in HOST_PATHS[name], name


@pytest.mark.parametrize(
    ("variant", "root", "mounts"),
    [
        ("default", "/", {"/driver-root/usr": "/usr"}),
        ("unprivileged", "/", {"/driver-root/usr": "/usr", "/driver-root/etc/alternatives": "/etc/alternatives"}),
        ("everything", "/run/nvidia/driver", {"/driver-root": "/run/nvidia/driver"}),
    ],
)
def test_of_the_node_the_agent_sees_the_driver_alone_read_only(variant: str, root: str, mounts: dict[str, str]) -> None:
    """A driver root that is a driver container's is mounted whole, so that a driver that is mounted anew is seen."""
    pod = dict(workloads(variant))["gpushare-agent"]
    (container,) = pod["containers"]
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"]}
    driver_mounts = [mount for mount in container["volumeMounts"] if mount["mountPath"].startswith("/driver-root")]
    assert {mount["mountPath"]: paths[mount["name"]] for mount in driver_mounts} == mounts
    assert {(mount["readOnly"], mount["mountPropagation"]) for mount in driver_mounts} == {(True, "HostToContainer")}
    assert f"--driver-root={root}" in container["args"]


def test_compute_modes_are_managed_unless_the_administrator_keeps_them() -> None:
    for variant, modes in (("default", "Manage"), ("everything", "Leave")):
        arguments = dict(workloads(variant))["gpushare-agent"]["containers"][0]["args"]
        assert f"--compute-mode={modes}" in arguments


@every_variant
def test_only_parts_that_talk_to_the_api_have_a_token(variant: str) -> None:
    tokens = {name for name, pod in workloads(variant) if pod["automountServiceAccountToken"]}
    talking = {"gpushare-operator", "gpushare-webhook", "gpushare-agent"}
    talking |= {"gpushare-test"} if variant != "applied" else set()
    assert tokens == talking | {"everything": {"gpushare-uninstall"}, "page": {"gpushare-ui"}}.get(variant, set())
    assert all(not account["automountServiceAccountToken"] for account in of_kind(variant, "ServiceAccount"))


@every_variant
def test_all_parts_run_the_image_that_the_policy_pins(variant: str) -> None:
    images = {container["image"] for _, container in containers(variant)}
    pinned = f"registry.example.com/gpushare/operator:v9@sha256:{'0' * 64}"
    assert images == {pinned if variant == "everything" else "registry.example.com/gpushare/operator:0.1.0"}
    (image,) = images
    (operator,) = [container for name, container in containers(variant) if name == "gpushare-operator"]
    environment = {entry["name"]: entry.get("value") for entry in operator["env"]}
    assert environment["GPUSHARE_IMAGE"] == image
    assert environment.get("GPUSHARE_IMAGE_PULL_SECRETS") == ("one,two" if variant == "everything" else None)
    if variant != "least":
        policy = named(variant, "ValidatingAdmissionPolicy", "gpushare-operator-daemonsets")
        assert f"== '{image}'" in json.dumps(policy)


@every_variant
def test_simulation_is_switched_on_in_every_part_or_in_none(variant: str) -> None:
    simulated = variant == "simulated"
    arguments = {name: container.get("args", ()) for name, container in containers(variant)}
    assert ("gpushare-simulated-driver" in arguments) is simulated
    for name in ("gpushare-operator", "gpushare-agent"):
        assert ("--simulation" in arguments[name]) is simulated


def test_the_priority_classes_come_with_the_quota_that_some_platforms_want() -> None:
    classes = {
        pod["priorityClassName"]
        for variant in VARIANTS
        for name, pod in workloads(variant)
        if name != "gpushare-ui"  # of the cluster's default: nothing depends on it
    }
    (quota,) = of_kind("default", "ResourceQuota")
    (scope,) = quota["spec"]["scopeSelector"]["matchExpressions"]
    assert classes == set(scope["values"])


def test_an_agent_never_overlaps_with_its_successor() -> None:
    strategy = named("default", "DaemonSet", "gpushare-agent")["spec"]["updateStrategy"]
    assert strategy["rollingUpdate"] == {"maxUnavailable": 1, "maxSurge": 0}


def test_replicas_are_spread_and_kept_through_a_drain() -> None:
    assert {item["metadata"]["name"] for item in of_kind("default", "PodDisruptionBudget")} == {"gpushare-webhook"}
    assert len(of_kind("everything", "PodDisruptionBudget")) == 2
    for name, pod in workloads("everything"):
        if name not in HOST_PATHS and name not in ("gpushare-uninstall", "gpushare-test"):
            (spread,) = pod["topologySpreadConstraints"]
            assert spread["topologyKey"] == "kubernetes.io/hostname"
            # `minDomains` would keep the second replica of a cluster of one node waiting.
            rule = {key: spread.get(key) for key in ("whenUnsatisfiable", "nodeTaintsPolicy", "minDomains")}
            assert rule == {"whenUnsatisfiable": "DoNotSchedule", "nodeTaintsPolicy": "Honor", "minDomains": None}
            assert spread["matchLabelKeys"] == ["pod-template-hash"], "a rollout goes on beside the release before"


def test_network_policies_cover_every_part_and_give_mps_pods_no_network() -> None:
    policies = {item["metadata"]["name"]: item["spec"] for item in of_kind("everything", "NetworkPolicy")}
    assert policies.keys() == {
        f"gpushare-{part}" for part in ("operator", "webhook", "agent", "mps", "simulated-driver")
    }
    assert policies["gpushare-mps"]["policyTypes"] == ["Ingress", "Egress"]
    assert not {"ingress", "egress"} & policies["gpushare-mps"].keys()


def test_the_webhook_can_listen_on_its_nodes_network() -> None:
    """API servers of some platforms reach nodes and no pods."""
    text = helm("template", str(CHART), "--set=webhook.hostNetwork=true,webhook.port=9443,webhook.replicas=2").stdout
    objects = {(item["kind"], item["metadata"]["name"]): item for item in documents(text)}
    deployment = objects["Deployment", "gpushare-webhook"]["spec"]
    pod = deployment["template"]["spec"]
    (container,) = pod["containers"]
    assert (pod["hostNetwork"], pod["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    assert "--port=9443" in container["args"]
    assert {"name": "https", "containerPort": 9443} in container["ports"]
    assert deployment["strategy"]["rollingUpdate"] == {"maxUnavailable": 1, "maxSurge": 0}, "a port has room for one"


@every_variant
def test_every_part_runs_on_linux_alone(variant: str) -> None:
    made_by_the_simulation = {"gpushare-simulated-driver"}
    for name, pod in workloads(variant):
        if name not in made_by_the_simulation:
            assert pod["nodeSelector"]["kubernetes.io/os"] == "linux", name


def test_the_agent_keeps_off_nodes_without_a_driver_or_a_kubelet() -> None:
    here = [
        {"key": "gpushare.dev/driver-released", "operator": "DoesNotExist"},
        {"key": "eks.amazonaws.com/compute-type", "operator": "NotIn", "values": ["fargate"]},
        {"key": "liqo.io/type", "operator": "NotIn", "values": ["virtual-node"]},
        {"key": "type", "operator": "NotIn", "values": ["virtual-kubelet"]},
    ]
    zone = {"key": "zone", "operator": "In", "values": ["a"]}
    named_so = {"key": "metadata.name", "operator": "In", "values": ["n1"]}
    affinity = dict(workloads("placed"))["gpushare-agent"]["affinity"]
    required = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert required["nodeSelectorTerms"] == [
        {"matchExpressions": [zone, *here]},
        {"matchExpressions": here, "matchFields": [named_so]},
    ]
    assert "podAffinity" in affinity
    plain = dict(workloads("default"))["gpushare-agent"]["affinity"]["nodeAffinity"]
    assert plain == {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": here}]}
    }
