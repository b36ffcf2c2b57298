"""What policies forbid the operator, by trying it with the very identity that they bind."""

import copy
import json

import pytest

from gpushare.api.gpushare import GpuShare
from gpushare.controller.claims.objects import device_classes, in_namespace, share_templates
from gpushare.controller.daemonset import daemon_set
from gpushare.controller.settings import OperatorSettings
from localcluster.kubectl import CommandError, Object
from localcluster.stack import NAMESPACE
from tests.cluster.harness import NODE, Harness, wait_until
from tests.cluster.rights.policies.held_fields import FREE, HELD
from tests.cluster.rights.policies.requests import AGENT, OPERATOR, Change, acting_as, refusal


def test_the_operator_writes_only_a_silent_agent_into_a_gpunodes_status(harness: Harness) -> None:
    wait_until("conditions", lambda: len(harness.gpu_node()["status"].get("conditions", [])) >= 4)
    current = harness.gpu_node()["status"]["conditions"]
    unknown = [{**condition, "status": "Unknown", "reason": "AgentSilent"} for condition in current]
    reporting = {
        "type": "AgentReporting",
        "status": "True",
        "reason": "x",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    others = [condition for condition in current if condition["type"] != "AgentReporting"]
    operator = acting_as(harness, OPERATOR)

    def patch(status: Object) -> tuple[str, ...]:
        return (
            "patch",
            "gpunode",
            NODE,
            "--subresource=status",
            "--type=merge",
            f"-p={json.dumps({'status': status})}",
        )

    for allowed in (unknown, [*others, reporting]):
        operator(*patch({"conditions": allowed}), "--dry-run=server")
    untrue = [{**condition, "status": "False" if condition["status"] == "True" else "True"} for condition in others]
    for refused in (untrue, others[1:]):
        assert "no more" in refusal(operator, *patch({"conditions": refused}))
    holders = [{"uuid": "GPU-0", "share": "mine", "slots": [0]}]
    mounted = harness.gpu_node()["status"].get("preStopMounted", False)
    others_part: list[Object] = [
        {"gpus": []},
        {"holders": holders},
        {"agentVersion": "x"},
        {"observedGeneration": 99},
        {"preStopMounted": not mounted},
    ]
    for other in others_part:
        assert "nothing else of it" in refusal(operator, *patch(other)), other


STARTUP = {"key": "gpushare.dev/agent-not-ready", "effect": "NoSchedule"}
TAINT_WRITES: dict[str, Object] = {
    "another taint goes": {"spec": {"taints": [STARTUP]}},
    "another taint changes": {"spec": {"taints": [STARTUP, {"key": "dedicated", "effect": "NoExecute"}]}},
    "a taint comes": {"spec": {"taints": [{"key": "mine", "effect": "NoSchedule"}]}},
}


def test_the_operator_removes_start_up_taints_from_a_node_and_no_other(harness: Harness) -> None:
    name, kept = "tainted", {"key": "dedicated", "effect": "NoSchedule"}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {"taints": [STARTUP, kept]}}
    operator = acting_as(harness, OPERATOR)

    def patch(body: Object) -> tuple[str, ...]:
        return ("patch", "node", name, "--type=merge", f"-p={json.dumps(body)}")

    def removes() -> bool:
        """Kubernetes changes taints of its own of a Node without a kubelet, also between this reading and the patch."""
        given = harness.kubectl.get("node", name)["spec"]["taints"]
        others = [taint for taint in given if taint["key"] != STARTUP["key"]]
        try:
            operator(*patch({"spec": {"taints": others}}), "--dry-run=server")
        except CommandError:
            return False
        return True

    harness.kubectl.create(node)
    try:
        wait_until("it removes its own taint and keeps the others", removes, 30)
        for case, body in TAINT_WRITES.items():
            assert "the operator may" in refusal(operator, *patch(body)), case
    finally:
        harness.kubectl.delete("node", name)
        harness.system.delete("pods", f"--field-selector=spec.nodeName={name}", "--grace-period=0", "--force")


@pytest.fixture(scope="module")
def mps(harness: Harness) -> Object:
    """The DaemonSet that the operator would make for a share."""
    spec = {"clients": {"perGpu": 8, "memory": {"default": "8Gi"}}}
    metadata = {"name": "policy", "uid": "0b7e42c1-9c1f-4f57-8f5e-2a6d1c3b4e5f"}
    share = GpuShare.model_validate({"metadata": metadata, "spec": spec})
    settings = OperatorSettings(NAMESPACE, "gpushare-operator-0", harness.stack.operator_image, simulation=True)
    return daemon_set(share, settings)


def test_the_operators_own_daemonset_passes(harness: Harness, mps: Object) -> None:
    acting_as(harness, OPERATOR)("create", "--dry-run=server", "-f", "-", stdin=json.dumps(mps))


def _pod(daemonset: Object) -> Object:
    pod: Object = daemonset["spec"]["template"]["spec"]
    return pod


def _container(daemonset: Object) -> Object:
    container: Object = _pod(daemonset)["containers"][0]
    return container


def _broker(daemonset: Object) -> Object:
    container: Object = _pod(daemonset)["containers"][1]
    return container


def _mount(daemonset: Object, place: int = 0) -> Object:
    mount: Object = _container(daemonset)["volumeMounts"][place]
    return mount


def _asking(daemonset: Object, resource: str, container: int = 0) -> None:
    resources = _pod(daemonset)["containers"][container]["resources"]
    for amounts in (resources["requests"], resources["limits"]):
        amounts[resource] = "1"


def _with_block_device(daemonset: Object) -> None:
    disk = {"name": "disk", "persistentVolumeClaim": {"claimName": "disk"}}
    _pod(daemonset)["volumes"].append(disk)
    _container(daemonset)["volumeDevices"] = [{"name": "disk", "devicePath": "/dev/disk"}]


def _host_path(path: str) -> Object:
    return {"name": "host", "hostPath": {"path": path}}


def _as_component(daemonset: Object, component: str) -> None:
    label = {"app.kubernetes.io/component": component}
    daemonset["spec"]["selector"]["matchLabels"] |= label
    daemonset["spec"]["template"]["metadata"]["labels"] |= label


FORBIDDEN: dict[str, tuple[str, Change]] = {
    "another image": ("runs the image", lambda obj: _container(obj).update(image="elsewhere/miner:1")),
    "another command": ("commands of an MPS pod are", lambda obj: _container(obj).update(command=["sh", "-c", "id"])),
    "another part of ours": (
        "commands of an MPS pod are",
        lambda obj: _container(obj).update(command=["gpushare", "agent"]),
    ),
    "arguments": ("no args", lambda obj: _container(obj).update(args=["--root=/"])),
    "a hook": (
        "no args, hooks",
        lambda obj: _container(obj).update(lifecycle={"preStop": {"exec": {"command": ["id"]}}}),
    ),
    "environment": ("no environment", lambda obj: _container(obj).update(env=[{"name": "LD_PRELOAD", "value": "/x"}])),
    "a third container": (
        "exactly two containers",
        lambda obj: _pod(obj)["containers"].append({"name": "b", "image": "b"}),
    ),
    "another directory in the broker": (
        "mounts run whole",
        lambda obj: _pod(obj)["containers"][1]["volumeMounts"].append({"name": "tmp", "mountPath": "/tmp"}),
    ),
    "a supervisor that may become another user": (
        "adds SYS_RESOURCE",
        lambda obj: _container(obj)["securityContext"]["capabilities"]["add"].append("SETUID"),
    ),
    "another command in the broker": (
        "commands of an MPS pod are",
        lambda obj: _pod(obj)["containers"][1].update(command=["gpushare", "mps-supervisor"]),
    ),
    "a broker of another image": ("runs the image", lambda obj: _pod(obj)["containers"][1].update(image="miner:1")),
    "a capability of the broker's": (
        "adds SYS_RESOURCE",
        lambda obj: _pod(obj)["containers"][1]["securityContext"].update(
            capabilities={"drop": ["ALL"], "add": ["SYS_PTRACE"]}
        ),
    ),
    "an init container": ("exactly two", lambda obj: _pod(obj).update(initContainers=[{"name": "b", "image": "b"}])),
    "privileged": (
        "not privileged",
        lambda obj: _container(obj).update(securityContext={"privileged": True, "readOnlyRootFilesystem": True}),
    ),
    "escalation": ("not privileged", lambda obj: _container(obj)["securityContext"].pop("allowPrivilegeEscalation")),
    "a writable root": ("read-only root", lambda obj: _container(obj)["securityContext"].pop("readOnlyRootFilesystem")),
    "an added capability": (
        "adds SYS_RESOURCE",
        lambda obj: _container(obj)["securityContext"].update(capabilities={"drop": ["ALL"], "add": ["SYS_ADMIN"]}),
    ),
    "kept capabilities": ("drops all", lambda obj: _container(obj)["securityContext"].pop("capabilities")),
    "no seccomp": ("seccomp", lambda obj: _pod(obj)["securityContext"].pop("seccompProfile")),
    "its own seccomp": (
        "seccomp",
        lambda obj: _container(obj)["securityContext"].update(seccompProfile={"type": "Unconfined"}),
    ),
    "the whole host": ("volumes run, hostPath", lambda obj: _pod(obj)["volumes"].append(_host_path("/"))),
    "a folder below": (
        "volumes run, hostPath",
        lambda obj: _pod(obj)["volumes"].append(_host_path("/run/gpushare/x")),
    ),
    "a Secret": (
        "in memory with a limit, only",
        lambda obj: _pod(obj)["volumes"].append({"name": "s", "secret": {"secretName": "gpushare-webhook-tls"}}),
    ),
    "the node's network": ("neither its network", lambda obj: _pod(obj).update(hostNetwork=True)),
    "the node's IPC": ("neither its network", lambda obj: _pod(obj).update(hostIPC=True)),
    "another account": (
        "ServiceAccount gpushare-mps",
        lambda obj: _pod(obj).update(serviceAccountName="gpushare-operator"),
    ),
    "a token": ("has no token", lambda obj: _pod(obj).update(automountServiceAccountToken=True)),
    "no AppArmor": (
        "AppArmor",
        lambda obj: _container(obj)["securityContext"].update(appArmorProfile={"type": "Unconfined"}),
    ),
    "another SELinux type": (
        "SELinux",
        lambda obj: _pod(obj)["securityContext"].update(seLinuxOptions={"type": "spc_t"}),
    ),
    "sysctls": (
        "no sysctls",
        lambda obj: _pod(obj)["securityContext"].update(sysctls=[{"name": "kernel.shm_rmid_forced", "value": "1"}]),
    ),
    "another runtime": ("RuntimeClass", lambda obj: _pod(obj).update(runtimeClassName="nvidia")),
    "a claim": (
        "claims",
        lambda obj: _pod(obj).update(resourceClaims=[{"name": "a", "resourceClaimName": "a"}]),
    ),
    "the webhook's labels": (
        "labels of an MPS pod",
        lambda obj: _as_component(obj, "webhook"),
    ),
    "another share than its label says": ("--share", lambda obj: _container(obj)["command"].__setitem__(3, "another")),
    "another root": ("--root", lambda obj: _container(obj)["command"].__setitem__(5, "/")),
    "a further argument": (
        "commands of an MPS pod are",
        lambda obj: _container(obj)["command"].append("--log-level=DEBUG"),
    ),
    "a further argument of the broker": (
        "commands of an MPS pod are",
        lambda obj: _broker(obj)["command"].append("-v"),
    ),
    "no simulation where the chart has one": ("chart's options", lambda obj: _container(obj)["command"].pop()),
    "a working directory": ("working directory", lambda obj: _container(obj).update(workingDir="/run/gpushare")),
    "a probe": ("probes", lambda obj: _container(obj).update(livenessProbe={"exec": {"command": ["id"]}})),
    "a readiness probe": ("probes", lambda obj: _container(obj).update(readinessProbe={"exec": {"command": ["id"]}})),
    "a start-up probe": ("probes", lambda obj: _container(obj).update(startupProbe={"exec": {"command": ["id"]}})),
    "standard input": ("standard input", lambda obj: _container(obj).update(stdin=True)),
    "a terminal": ("standard input", lambda obj: _container(obj).update(tty=True)),
    "a message file elsewhere": (
        "message file",
        lambda obj: _container(obj).update(terminationMessagePath="/run/gpushare/x"),
    ),
    "a block device": ("block devices", lambda obj: _with_block_device(obj)),
    "a port": ("ports", lambda obj: _container(obj).update(ports=[{"containerPort": 80}])),
    "environment of a Secret": (
        "no environment",
        lambda obj: _container(obj).update(envFrom=[{"secretRef": {"name": "gpushare-webhook-tls"}}]),
    ),
    "another device": ("asks for CPU", lambda obj: _asking(obj, "nvidia.com/gpu")),
    "another share's slot": ("asks for CPU", lambda obj: _asking(obj, "gpushare.dev/other")),
    "a device in the broker": ("asks for CPU", lambda obj: _asking(obj, "internal.gpushare.dev/mps", container=1)),
    "run elsewhere": ("mounts run whole", lambda obj: _mount(obj).update(mountPath="/usr/bin")),
    "a part of run": ("mounts run whole", lambda obj: _mount(obj).update(subPath="gpus")),
    "a part of run by a variable": ("mounts run whole", lambda obj: _mount(obj).update(subPathExpr="gpus")),
    "propagation": ("mounts run whole", lambda obj: _mount(obj).update(mountPropagation="HostToContainer")),
    "run twice": (
        "mounts run whole",
        lambda obj: _container(obj)["volumeMounts"].append({"name": "run", "mountPath": "/opt/gpushare"}),
    ),
    "tmp over the programs": ("mounts run whole", lambda obj: _mount(obj, place=1).update(mountPath="/opt/gpushare")),
    "another kind of path": ("volumes run, hostPath", lambda obj: _pod(obj)["volumes"][0]["hostPath"].update(type="")),
    "run in memory": (
        "volumes run, hostPath",
        lambda obj: _pod(obj)["volumes"].__setitem__(0, {"name": "run", "emptyDir": {}}),
    ),
    "a tmp on the node": ("in memory", lambda obj: _pod(obj)["volumes"][1].update(emptyDir={"sizeLimit": "1Mi"})),
    "a tmp without a limit": ("in memory", lambda obj: _pod(obj)["volumes"][1].update(emptyDir={"medium": "Memory"})),
    "a node by name": ("default scheduler", lambda obj: _pod(obj).update(nodeName=NODE)),
    "another scheduler": ("default scheduler", lambda obj: _pod(obj).update(schedulerName="mine")),
    "another priority": ("node-critical", lambda obj: _pod(obj).update(priorityClassName="system-cluster-critical")),
    "a group of files": ("no fsGroup", lambda obj: _pod(obj)["securityContext"].update(fsGroup=5)),
    "another's pull secret": ("imagePullSecrets", lambda obj: _pod(obj).update(imagePullSecrets=[{"name": "other"}])),
    "names of hosts": (
        "no fsGroup, names of hosts",
        lambda obj: _pod(obj).update(hostAliases=[{"ip": "10.0.0.1", "hostnames": ["kubernetes.default.svc"]}]),
    ),
    "DNS": ("DNS settings", lambda obj: _pod(obj).update(dnsConfig={"nameservers": ["10.0.0.1"]})),
    "its own SELinux type": (
        "SELinux",
        lambda obj: _container(obj)["securityContext"].update(seLinuxOptions={"type": "spc_t"}),
    ),
    "no AppArmor for the pod": (
        "AppArmor",
        lambda obj: _pod(obj)["securityContext"].update(appArmorProfile={"type": "Unconfined"}),
    ),
    "another name": ("gpushare-mps-<share>", lambda obj: obj["metadata"].update(name="gpushare-agent-2")),
}


@pytest.mark.parametrize("case", FORBIDDEN)
def test_a_daemonset_of_the_operator_has_never(harness: Harness, mps: Object, case: str) -> None:
    words, change = FORBIDDEN[case]
    changed = copy.deepcopy(mps)
    change(changed)
    assert words in refusal(acting_as(harness, OPERATOR), "create", "-f", "-", body=changed)


@pytest.mark.parametrize("kind", FREE)
def test_every_field_of_an_mps_pod_is_held_or_free_for_a_reason(harness: Harness, kind: str) -> None:
    """A release of Kubernetes that has a new one fails this, until somebody has decided."""
    schemas = json.loads(harness.kubectl("get", "--raw", "/openapi/v3/apis/apps/v1"))["components"]["schemas"]
    fields = set(schemas[f"io.k8s.api.core.v1.{kind}"]["properties"])
    assert fields - HELD[kind] - FREE[kind].keys() == set()


def test_the_operator_changes_and_deletes_no_daemonset_but_its_own(harness: Harness) -> None:
    operator = acting_as(harness, OPERATOR).within(NAMESPACE)
    patch = '-p={"spec":{"minReadySeconds":1}}'
    assert "gpushare-mps-<share>" in refusal(operator, "patch", "daemonset", "gpushare-agent", "--type=merge", patch)
    assert "gpushare-mps-<share>" in refusal(operator, "delete", "daemonset", "gpushare-agent")


def test_the_operator_deletes_no_pod_but_mps_pods(harness: Harness) -> None:
    operator = acting_as(harness, OPERATOR).within(NAMESPACE)
    (agent, *_) = harness.pods_of("agent")
    assert "pods of DaemonSets gpushare-mps-<share>" in refusal(operator, "delete", "pod", agent["metadata"]["name"])
    with harness.share("policed", per_node=1):
        (mps,) = harness.pods_of("mps")
        operator("delete", "pod", mps["metadata"]["name"], "--dry-run=server")


def test_the_operator_labels_nodes_for_shares(harness: Harness) -> None:
    operator = acting_as(harness, OPERATOR)
    operator("label", "node", NODE, "share.gpushare.dev/a=true", "--dry-run=server")


@pytest.mark.parametrize(
    "patch",
    [
        {"metadata": {"labels": {"nvidia.com/gpu.deploy.device-plugin": "false"}}},
        {"metadata": {"labels": {"kubernetes.io/hostname": None}}},
        {"metadata": {"labels": {"kubernetes.io/hostname": "other"}}},
        {"metadata": {"annotations": {"a": "b"}}},
        {"metadata": {"finalizers": ["gpushare.dev/x"]}},
        {"spec": {"unschedulable": True}},
        {"spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}},
    ],
    ids=json.dumps,
)
def test_the_operator_changes_nothing_else_of_a_node(harness: Harness, patch: Object) -> None:
    message = refusal(acting_as(harness, OPERATOR), "patch", "node", NODE, "--type=merge", f"-p={json.dumps(patch)}")
    assert ("start-up taints" if "spec" in patch else "share.gpushare.dev/<share>") in message


def test_the_operator_sends_the_agent_off_a_node_by_a_label(harness: Harness) -> None:
    operator = acting_as(harness, OPERATOR)
    operator("label", "node", NODE, "gpushare.dev/driver-released=true", "--dry-run=server")
    message = refusal(operator, "label", "node", NODE, "gpushare.dev/driver=true", "--dry-run=server")
    assert "gpushare.dev/driver-released" in message


@pytest.fixture(scope="module")
def by_claims() -> GpuShare:
    spec = {
        "clients": {"perGpu": 8, "memory": {"default": "8Gi"}},
        "delivery": "ResourceClaim",
        "sizes": [{"name": "small", "threads": 10, "memory": "2Gi"}],
    }
    metadata = {"name": "policy", "uid": "0b7e42c1-9c1f-4f57-8f5e-2a6d1c3b4e5f"}
    return GpuShare.model_validate({"metadata": metadata, "spec": spec})


def test_the_operators_own_classes_pass(harness: Harness, by_claims: GpuShare) -> None:
    for body in device_classes(by_claims):
        acting_as(harness, OPERATOR)("create", "--dry-run=server", "-f", "-", stdin=json.dumps(body))


OURS = 'device.driver == "gpushare.dev" && '
EXPRESSIONS = (
    OURS + "false ? false : true",
    OURS + "(false ? false : true)",
    OURS + 'device.attributes["gpushare.dev"].?share.orValue("") == "another"',
    OURS + 'device.attributes["gpushare.dev"].?share.orValue("") == "policy" ? true : true',
    "true",
)


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_a_class_of_the_operator_selects_the_devices_of_its_share_alone(
    harness: Harness, by_claims: GpuShare, expression: str
) -> None:
    (own, *_) = device_classes(by_claims)
    own["spec"]["selectors"] = [{"cel": {"expression": expression}}]
    assert "exactly the expression" in refusal(acting_as(harness, OPERATOR), "create", "-f", "-", body=own)


def test_a_class_of_the_operator_stands_for_no_other_shares_slots(harness: Harness, by_claims: GpuShare) -> None:
    (own, *_) = device_classes(by_claims)
    own["spec"]["extendedResourceName"] = "gpushare.dev/another"
    assert "exactly the expression" in refusal(acting_as(harness, OPERATOR), "create", "-f", "-", body=own)


NOBODYS = {"name": "gpu", "exactly": {"deviceClassName": "a.b.policy.gpushare.dev", "allocationMode": "All"}}
"""A class that the webhook takes for none of ours, though the policy takes it for one of the share."""
PARAMETERS = {"opaque": {"driver": "gpu.nvidia.com", "parameters": {"apiVersion": "a/v1", "kind": "Sharing"}}}
TEMPLATES: dict[str, Object] = {
    "another driver's class": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]},
    "two requests": {"requests": [NOBODYS, NOBODYS | {"name": "second"}]},
    "a driver's parameters": {"requests": [NOBODYS], "config": [PARAMETERS]},
}


@pytest.mark.parametrize("case", TEMPLATES)
def test_a_template_of_the_operator_asks_for_its_size_alone(harness: Harness, by_claims: GpuShare, case: str) -> None:
    (template,) = (in_namespace(body, "default") for body in share_templates(by_claims))
    template["spec"]["spec"]["devices"] = TEMPLATES[case]
    assert "size of its share alone" in refusal(acting_as(harness, OPERATOR), "create", "-f", "-", body=template)


@pytest.mark.parametrize(
    "patch",
    [
        {"spec": {"clients": {"perGpu": 9}}},
        {"spec": {"allowedNamespaces": {"matchLabels": {"team": "b"}}}},
        {"metadata": {"labels": {"a": "b"}}},
        {"metadata": {"annotations": {"a": "b"}}},
        {"metadata": {"finalizers": []}},
        {"metadata": {"finalizers": ["admin.example/hold", "another.example/hold"]}},
    ],
    ids=json.dumps,
)
def test_the_operator_changes_nothing_of_a_share_that_its_users_wrote(harness: Harness, patch: Object) -> None:
    spec = {"clients": {"perGpu": 8, "memory": {"default": "8Gi"}}, "nodeSelector": {"matchLabels": {"no": "node"}}}
    spec["allowedNamespaces"] = {"matchLabels": {"team": "a"}}
    share = {"apiVersion": "gpushare.dev/v1alpha1", "kind": "GpuShare", "spec": spec}
    share["metadata"] = {"name": "written", "finalizers": ["admin.example/hold"]}
    harness.kubectl.apply(share)
    try:
        change = ("patch", "gpushare", "written", "--type=merge", f"-p={json.dumps(patch)}")
        assert "GpuShare" in refusal(acting_as(harness, OPERATOR), *change)
    finally:
        harness.kubectl(
            "patch", "gpushare", "written", "--type=json", '-p=[{"op":"remove","path":"/metadata/finalizers"}]'
        )
        harness.kubectl.delete("gpushare", "written")


@pytest.mark.parametrize("name", ["gpushare-webhook-tls2", "anything"])
def test_the_operator_makes_itself_no_token_of_another_part(harness: Harness, name: str) -> None:
    annotations = {"kubernetes.io/service-account.name": AGENT}
    secret = {"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token"}
    body = secret | {"metadata": {"name": name, "namespace": NAMESPACE, "annotations": annotations}}
    assert "of certificates, alone" in refusal(acting_as(harness, OPERATOR), "create", "-f", "-", body=body)
