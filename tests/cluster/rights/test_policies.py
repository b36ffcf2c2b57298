"""Each policy, by trying what it forbids with the very identity that it binds: RBAC lets these requests pass.

Everything is a dry run on the server: admission decides, nothing is stored.
"""

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from gpushare.agent.dra.slices import resource_slice
from gpushare.agent.termination.kubelet_kills import LACK, POD_REASONS, REJECTIONS
from gpushare.api.gpushare import GpuShare
from gpushare.controller.claims.objects import device_classes, in_namespace, share_templates
from gpushare.controller.daemonset import daemon_set
from gpushare.controller.settings import OperatorSettings
from localcluster.kubectl import CommandError, Kubectl, Object
from localcluster.stack import NAMESPACE
from tests.cluster.harness import NODE, Harness, wait_until

AGENT, OPERATOR = "gpushare-agent", "gpushare-operator"
Change = Callable[[Object], Any]


def acting_as(harness: Harness, account: str, node: str | None = None, pod: str | None = None) -> Kubectl:
    """With a token as the kubelet asks it for: bound to `node` and `pod`."""
    bound = {"node-name": node, "pod-name": pod}
    extra = [f"--as-user-extra=authentication.kubernetes.io/{key}={value}" for key, value in bound.items() if value]
    return harness.kubectl.acting_as(f"--as=system:serviceaccount:{NAMESPACE}:{account}", *extra)


def refusal(kubectl: Kubectl, verb: str, *arguments: str, body: Object | None = None) -> str:
    with pytest.raises(CommandError) as refused:
        kubectl(verb, *arguments, "--dry-run=server", stdin=json.dumps(body) if body else None)
    assert "ValidatingAdmissionPolicy" in refused.value.text, "refused by something else: " + refused.value.text
    return refused.value.text


def gpu_node(name: str, **parts: Any) -> Object:
    return {"apiVersion": "gpushare.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": name}, **parts}


def test_an_agent_writes_the_gpunode_of_its_own_node_alone(harness: Harness) -> None:
    create = ("create", "-f", "-")
    agent = acting_as(harness, AGENT, node="here")
    agent(*create, "--dry-run=server", stdin=json.dumps(gpu_node("here")))
    message = refusal(agent, *create, body=gpu_node("elsewhere"))
    assert 'the agent on node "here" may write GpuNode "here" alone, not "elsewhere"' in message
    refusal(acting_as(harness, AGENT), *create, body=gpu_node("here"))  # a token bound to no node


def test_an_agent_writes_no_status_of_another_node(harness: Harness) -> None:
    patch = ("patch", "gpunode", NODE, "--subresource=status", "--type=merge", '-p={"status":{"agentVersion":"x"}}')
    acting_as(harness, AGENT, node=NODE)(*patch, "--dry-run=server")
    assert "alone, not" in refusal(acting_as(harness, AGENT, node="elsewhere"), *patch)


def test_an_agent_assigns_itself_no_gpu(harness: Harness) -> None:
    spec = {"assignments": [{"uuid": "GPU-0", "share": "mine"}]}
    agent = acting_as(harness, AGENT, node="here")
    assert "operator's to write" in refusal(agent, "create", "-f", "-", body=gpu_node("here", spec=spec))
    patch = ("patch", "gpunode", NODE, "--type=merge", f"-p={json.dumps({'spec': spec})}")
    assert "operator's to write" in refusal(acting_as(harness, AGENT, node=NODE), *patch)


PATCH = ("apply", "--server-side", "--force-conflicts", "--field-manager=gpushare-agent", "-f", "-")
"""Unlike `kubectl patch` it reads nothing first, which the agent may not."""


def lease(name: str) -> Object:
    metadata = {"name": name, "namespace": NAMESPACE}
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": metadata,
        "spec": {"holderIdentity": "x"},
    }


def test_an_agent_renews_the_lease_of_its_own_node_alone(harness: Harness) -> None:
    create = ("create", "-f", "-")
    here = acting_as(harness, AGENT, node="here")
    here(*create, "--dry-run=server", stdin=json.dumps(lease("here")))
    message = refusal(here, *create, body=lease("elsewhere"))
    assert 'the agent on node "here" may write Lease "here" alone, not "elsewhere"' in message
    refusal(acting_as(harness, AGENT), *create, body=lease("here"))  # a token bound to no node
    wait_until("the Lease", lambda: harness.system.find("lease", NODE))
    acting_as(harness, AGENT, node=NODE)(*PATCH, "--dry-run=server", stdin=json.dumps(lease(NODE)))
    assert "alone, not" in refusal(here, *PATCH, body=lease(NODE))


def test_an_agent_takes_the_operators_lease_not_even_on_a_node_of_that_name(harness: Harness) -> None:
    refusal(acting_as(harness, AGENT, node=OPERATOR), *PATCH, body=lease(OPERATOR))


def test_the_operator_writes_of_a_gpunodes_status_that_its_agent_is_silent_and_no_more(harness: Harness) -> None:
    wait_until("conditions", lambda: len(harness.gpu_node()["status"].get("conditions", [])) >= 4)
    current = harness.gpu_node()["status"]["conditions"]
    unknown = [{**it, "status": "Unknown", "reason": "AgentSilent"} for it in current]
    reporting = {
        "type": "AgentReporting",
        "status": "True",
        "reason": "x",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    others = [it for it in current if it["type"] != "AgentReporting"]
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
    untrue = [{**it, "status": "False" if it["status"] == "True" else "True"} for it in others]
    for refused in (untrue, others[1:]):
        assert "no more" in refusal(operator, *patch({"conditions": refused}))
    holders = [{"uuid": "GPU-0", "share": "mine", "slots": [0]}]
    others_part: list[Object] = [{"gpus": []}, {"holders": holders}, {"agentVersion": "x"}, {"observedGeneration": 99}]
    for other in others_part:
        assert "nothing else of it" in refusal(operator, *patch(other))


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
        """Of a Node without a kubelet Kubernetes changes taints of its own, also between this reading and the patch."""
        given = harness.kubectl.get("node", name)["spec"]["taints"]
        others = [it for it in given if it["key"] != STARTUP["key"]]
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


@pytest.mark.parametrize("share", ["a b", "A", "node-restriction.kubernetes.io/x", "a" * 41])
def test_an_agent_reports_no_share_that_could_not_be_one(harness: Harness, share: str) -> None:
    """The operator makes a label of its Node from it."""
    uuid = "GPU-0b7e42c1-9c1f-4f57-8f5e-2a6d1c3b4e5f"
    status = {"daemons": [{"uuid": uuid, "share": share, "ready": True}]}
    patch = ("patch", "gpunode", NODE, "--subresource=status", "--type=merge", f"-p={json.dumps({'status': status})}")
    with pytest.raises(CommandError, match=r"status\.daemons"):
        acting_as(harness, AGENT, node=NODE)(*patch, "--dry-run=server")


@pytest.mark.parametrize(
    "metadata",
    [
        {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "elsewhere", "uid": "0"}]},
        {"ownerReferences": [{"apiVersion": "v1", "kind": "Namespace", "name": "here", "uid": "0"}]},
        {"finalizers": ["gpushare.dev/kept"]},
    ],
    ids=str,
)
def test_a_gpunode_is_tied_to_nothing_but_its_own_node(harness: Harness, metadata: Object) -> None:
    """An owner that blocks could hold up the deletion of somebody else's object."""
    body = gpu_node("here")
    body["metadata"] |= metadata
    assert "its own Node alone" in refusal(acting_as(harness, AGENT, node="here"), "create", "-f", "-", body=body)
    patch = ("patch", "gpunode", NODE, "--type=merge", f"-p={json.dumps({'metadata': metadata})}")
    assert "its own Node alone" in refusal(acting_as(harness, AGENT, node=NODE), *patch)


def slice_of(node: str) -> Object:
    """As the agent of `node` writes it."""
    return resource_slice(node, "0b7e42c1-9c1f-4f57-8f5e-2a6d1c3b4e5f", [])


def test_an_agents_own_slice_passes(harness: Harness) -> None:
    acting_as(harness, AGENT, node="here")("create", "--dry-run=server", "-f", "-", stdin=json.dumps(slice_of("here")))


SLICES: dict[str, tuple[str, Change]] = {
    "of another node": ("of that node", lambda it: it["spec"].update(nodeName="elsewhere")),
    "of every node": ("of that node", lambda it: (it["spec"].pop("nodeName"), it["spec"].update(allNodes=True))),
    "of another driver": ("of that node", lambda it: it["spec"].update(driver="gpu.nvidia.com")),
    "in the pool of another node, which its generation makes void": (
        "pool",  # two policies refuse it
        lambda it: it["spec"].update(pool={"name": "elsewhere", "generation": 2**40, "resourceSliceCount": 1}),
    ),
    "of a pool that is never complete": ("of a pool named", lambda it: it["spec"]["pool"].update(resourceSliceCount=2)),
    "beside its own": ("may write one ResourceSlice", lambda it: it["metadata"].update(name="second-gpushare.dev")),
    "that cannot be deleted": (
        "its own Node alone",
        lambda it: it["metadata"].update(finalizers=["gpushare.dev/kept"]),
    ),
    "owned by another node": (
        "its own Node alone",
        lambda it: it["metadata"]["ownerReferences"][0].update(name="elsewhere"),
    ),
}


@pytest.mark.parametrize("case", SLICES)
def test_an_agent_writes_no_slice(harness: Harness, case: str) -> None:
    words, change = SLICES[case]
    body = slice_of("here")
    change(body)
    assert words in refusal(acting_as(harness, AGENT, node="here"), "create", "-f", "-", body=body)


def test_a_kubelet_puts_no_device_into_the_pool_of_another_node(harness: Harness) -> None:
    """By its own credentials, which a compromised node has as well."""
    body = slice_of(NODE)
    body["metadata"]["name"] = "by-the-kubelet"
    kubelet = harness.kubectl.acting_as(f"--as=system:node:{NODE}", "--as-group=system:nodes")
    kubelet("create", "--dry-run=server", "-f", "-", stdin=json.dumps(body))
    body["spec"]["pool"] = {"name": "elsewhere", "generation": 2**40, "resourceSliceCount": 1}
    assert "in the pool of that node" in refusal(kubelet, "create", "-f", "-", body=body)


def event_of(part: str, pod: str, **fields: Any) -> Object:
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": f"policy.{part}", "namespace": "default"},
        "eventTime": "2026-03-01T00:00:00.000000Z",
        "reportingController": f"gpushare-{part}",
        "reportingInstance": pod,
        "type": "Warning",
        "reason": "GpuFault",
        "action": "Supervise",
        "note": "as it was",
        "regarding": {"apiVersion": "gpushare.dev/v1alpha1", "kind": "GpuNode", "name": "here"},
        **fields,
    }


@pytest.mark.parametrize("part", ["agent", "operator"])
def test_a_part_writes_events_in_its_own_name_alone_and_rewrites_none(harness: Harness, part: str) -> None:
    create, own = ("create", "-f", "-"), acting_as(harness, f"gpushare-{part}", node="here", pod="mine")
    own(*create, "--dry-run=server", stdin=json.dumps(event_of(part, "mine")))
    for forged in (
        event_of(part, "another"),
        event_of(part, "mine", reportingController="kubelet"),
        event_of(part, "mine", reportingController="default-scheduler"),
    ):
        assert "alone" in refusal(own, *create, body=forged)
    harness.kubectl("create", "-f", "-", stdin=json.dumps(event_of(part, "predecessor")))
    identity = {key: event_of(part, "")[key] for key in ("apiVersion", "kind", "metadata", "eventTime")}
    apply = ("apply", "--server-side", "--force-conflicts", "-f", "-")
    try:
        series = {"series": {"count": 2, "lastObservedTime": "2026-03-01T00:01:00.000000Z"}}
        own(*apply, "--dry-run=server", stdin=json.dumps(identity | series))
        for change in ({"note": "all is well"}, {"type": "Normal"}, {"reportingInstance": "mine"}):
            with pytest.raises(CommandError, match="immutable"):
                own(*apply, "--dry-run=server", stdin=json.dumps(identity | change))
        held = {"metadata": identity["metadata"] | {"finalizers": ["gpushare.dev/kept"]}}
        assert "its series alone" in refusal(own, *apply, body=identity | held)
    finally:
        harness.kubectl("delete", "event", f"policy.{part}", "--namespace=default")


@pytest.mark.parametrize("part", ["agent", "operator"])
def test_a_part_touches_no_event_of_others(harness: Harness, part: str) -> None:
    """Not even by counting it up."""
    body = event_of(part, "another", reportingController="kubelet")
    harness.kubectl("create", "-f", "-", stdin=json.dumps(body))
    try:
        identity = {key: body[key] for key in ("apiVersion", "kind", "metadata", "eventTime")}
        series = {"series": {"count": 2, "lastObservedTime": "2026-03-01T00:01:00.000000Z"}}
        own = acting_as(harness, f"gpushare-{part}", node="here", pod="mine")
        message = refusal(own, "apply", "--server-side", "--force-conflicts", "-f", "-", body=identity | series)
        assert f"may write events as gpushare-{part}" in message
    finally:
        harness.kubectl("delete", "event", f"policy.{part}", "--namespace=default")


def test_an_agent_writes_no_event_about_another_gpunode(harness: Harness) -> None:
    body = event_of("agent", "mine", regarding={"apiVersion": "x/v1", "kind": "GpuNode", "name": "elsewhere"})
    agent = acting_as(harness, AGENT, node="here", pod="mine")
    assert "its own node alone" in refusal(agent, "create", "-f", "-", body=body)


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


def _host_path(path: str) -> Object:
    return {"name": "host", "hostPath": {"path": path}}


def _as_component(daemonset: Object, component: str) -> None:
    label = {"app.kubernetes.io/component": component}
    daemonset["spec"]["selector"]["matchLabels"] |= label
    daemonset["spec"]["template"]["metadata"]["labels"] |= label


FORBIDDEN: dict[str, tuple[str, Change]] = {
    "another image": ("runs the image", lambda it: _container(it).update(image="elsewhere/miner:1")),
    "another command": ("command begins with", lambda it: _container(it).update(command=["sh", "-c", "id"])),
    "another part of ours": ("command begins with", lambda it: _container(it).update(command=["gpushare", "agent"])),
    "arguments": ("command begins with", lambda it: _container(it).update(args=["--root=/"])),
    "a hook": (
        "command begins with",
        lambda it: _container(it).update(lifecycle={"preStop": {"exec": {"command": ["id"]}}}),
    ),
    "environment": ("no environment", lambda it: _container(it).update(env=[{"name": "LD_PRELOAD", "value": "/x"}])),
    "a third container": (
        "exactly two containers",
        lambda it: _pod(it)["containers"].append({"name": "b", "image": "b"}),
    ),
    "a broker that is root": (
        "runs as UID 65534",
        lambda it: _pod(it)["containers"][1]["securityContext"].update(runAsUser=0, runAsNonRoot=False),
    ),
    "another command in the broker": (
        "command begins with",
        lambda it: _pod(it)["containers"][1].update(command=["gpushare", "mps-supervisor"]),
    ),
    "a broker of another image": ("runs the image", lambda it: _pod(it)["containers"][1].update(image="miner:1")),
    "a capability of the broker's": (
        "adds none",
        lambda it: _pod(it)["containers"][1]["securityContext"].update(
            capabilities={"drop": ["ALL"], "add": ["SYS_PTRACE"]}
        ),
    ),
    "an init container": ("exactly two", lambda it: _pod(it).update(initContainers=[{"name": "b", "image": "b"}])),
    "privileged": (
        "not privileged",
        lambda it: _container(it).update(securityContext={"privileged": True, "readOnlyRootFilesystem": True}),
    ),
    "escalation": ("not privileged", lambda it: _container(it)["securityContext"].pop("allowPrivilegeEscalation")),
    "a writable root": ("read-only root", lambda it: _container(it)["securityContext"].pop("readOnlyRootFilesystem")),
    "an added capability": (
        "adds none",
        lambda it: _container(it)["securityContext"].update(capabilities={"drop": ["ALL"], "add": ["SYS_ADMIN"]}),
    ),
    "kept capabilities": ("drops all", lambda it: _container(it)["securityContext"].pop("capabilities")),
    "no seccomp": ("seccomp", lambda it: _pod(it)["securityContext"].pop("seccompProfile")),
    "its own seccomp": (
        "seccomp",
        lambda it: _container(it)["securityContext"].update(seccompProfile={"type": "Unconfined"}),
    ),
    "the whole host": ("hostPath /run/gpushare", lambda it: _pod(it)["volumes"].append(_host_path("/"))),
    "a folder below": (
        "hostPath /run/gpushare",
        lambda it: _pod(it)["volumes"].append(_host_path("/run/gpushare/x")),
    ),
    "a Secret": (
        "emptyDir only",
        lambda it: _pod(it)["volumes"].append({"name": "s", "secret": {"secretName": "gpushare-webhook-tls"}}),
    ),
    "the node's network": ("neither its network", lambda it: _pod(it).update(hostNetwork=True)),
    "the node's IPC": ("neither its network", lambda it: _pod(it).update(hostIPC=True)),
    "another account": (
        "ServiceAccount gpushare-mps",
        lambda it: _pod(it).update(serviceAccountName="gpushare-operator"),
    ),
    "a token": ("has no token", lambda it: _pod(it).update(automountServiceAccountToken=True)),
    "no AppArmor": (
        "AppArmor",
        lambda it: _container(it)["securityContext"].update(appArmorProfile={"type": "Unconfined"}),
    ),
    "another SELinux type": (
        "SELinux",
        lambda it: _pod(it)["securityContext"].update(seLinuxOptions={"type": "spc_t"}),
    ),
    "sysctls": (
        "no sysctls",
        lambda it: _pod(it)["securityContext"].update(sysctls=[{"name": "kernel.shm_rmid_forced", "value": "1"}]),
    ),
    "another runtime": ("RuntimeClass", lambda it: _pod(it).update(runtimeClassName="nvidia")),
    "a claim": (
        "claims",
        lambda it: _pod(it).update(resourceClaims=[{"name": "a", "resourceClaimName": "a"}]),
    ),
    "the webhook's labels": (
        "labels of an MPS pod",
        lambda it: _as_component(it, "webhook"),
    ),
    "another name": ("gpushare-mps-<share>", lambda it: it["metadata"].update(name="gpushare-agent-2")),
}


@pytest.mark.parametrize("case", FORBIDDEN)
def test_a_daemonset_of_the_operator_has_never(harness: Harness, mps: Object, case: str) -> None:
    words, change = FORBIDDEN[case]
    changed = copy.deepcopy(mps)
    change(changed)
    assert words in refusal(acting_as(harness, OPERATOR), "create", "-f", "-", body=changed)


def test_the_operator_changes_and_deletes_no_daemonset_but_its_own(harness: Harness) -> None:
    operator = acting_as(harness, OPERATOR).within(NAMESPACE)
    patch = '-p={"spec":{"minReadySeconds":1}}'
    assert "gpushare-mps-<share>" in refusal(operator, "patch", "daemonset", "gpushare-agent", "--type=merge", patch)
    assert "gpushare-mps-<share>" in refusal(operator, "delete", "daemonset", "gpushare-agent")


def test_the_operator_deletes_no_pod_but_mps_pods(harness: Harness) -> None:
    operator = acting_as(harness, OPERATOR).within(NAMESPACE)
    (agent, *_) = harness.system.items("pods", "--selector=app.kubernetes.io/component=agent")
    assert "pods of DaemonSets gpushare-mps-<share>" in refusal(operator, "delete", "pod", agent["metadata"]["name"])
    with harness.share("policed", per_node=1):
        (mps,) = harness.system.items("pods", "--selector=app.kubernetes.io/component=mps")
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


@pytest.mark.parametrize("kind", ["containers", "initContainers"])
def test_the_internal_resource_is_refused_outside_our_namespace(harness: Harness, kind: str) -> None:
    with harness.namespace() as tenant:
        pod = tenant.pod("thief", "none", "limits")
        (container,) = pod["spec"]["containers"]
        thief = container | {"name": "thief", "resources": {"limits": {"internal.gpushare.dev/mps": "1"}}}
        pod["spec"] |= {"containers": [container | {"resources": {}}]} | {kind: [thief]}
        message = refusal(tenant.kubectl, "create", "-f", "-", body=pod)
        assert "ask for gpushare.dev/<share> instead" in message


def kubelet_event(**fields: Any) -> Object:
    about = {"kind": "Pod", "namespace": "default", "name": "victim", "uid": "0", "fieldPath": "spec.containers{app}"}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "forged", "namespace": "default"},
        "involvedObject": about,
        "source": {"component": "kubelet", "host": NODE},
        "reason": "Killing",
        "message": "Stopping container app",
        "type": "Normal",
        **fields,
    }


def test_nobody_but_a_node_says_that_the_kubelet_ends_a_pod(harness: Harness) -> None:
    """The agent ends the clients of such a container: it would be a way to end those of others."""
    create = ("create", "-f", "-")
    for reason in ("Killing", *POD_REASONS, *REJECTIONS, f"{LACK}cpu"):
        assert "for nodes to write" in refusal(harness.kubectl, *create, body=kubelet_event(reason=reason)), reason
    node = harness.kubectl.acting_as(f"--as=system:node:{NODE}", "--as-group=system:nodes")
    node(*create, "--dry-run=server", stdin=json.dumps(kubelet_event()))
    harness.kubectl(*create, "--dry-run=server", stdin=json.dumps(kubelet_event(reason="Started")))


def test_no_node_says_that_the_kubelet_of_another_ends_a_pod(harness: Harness) -> None:
    node = harness.kubectl.acting_as("--as=system:node:elsewhere", "--as-group=system:nodes")
    for reason in ("Killing", *POD_REASONS, *REJECTIONS, f"{LACK}cpu"):
        assert "of its own kubelet" in refusal(node, "create", "-f", "-", body=kubelet_event(reason=reason)), reason


def test_the_other_form_of_an_event_is_judged_alike(harness: Harness) -> None:
    """It cannot name a source, without which no agent acts on it."""
    old = kubelet_event()
    new = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": old["metadata"],
        "eventTime": "2026-03-01T00:00:00.000000Z",
        "regarding": old["involvedObject"],
        "reportingController": "kubelet",
        "reportingInstance": "node",
        "action": "Kill",
        "reason": "Killing",
        "note": "Stopping container app",
        "type": "Normal",
    }
    assert "for nodes to write" in refusal(harness.kubectl, "create", "-f", "-", body=new)
    sourced = new | {"deprecatedSource": old["source"]}
    with pytest.raises(CommandError, match="source: Invalid value"):
        harness.kubectl("create", "-f", "-", "--dry-run=server", stdin=json.dumps(sourced))
