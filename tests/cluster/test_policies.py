"""Each policy, by trying what it forbids with the very identity that it binds: RBAC lets these requests pass.

Everything is a dry run on the server: admission decides, nothing is stored.
"""

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from gpushare.agent.termination.kubelet_kills import LACK, POD_REASONS, REJECTIONS
from gpushare.api.gpushare import GpuShare
from gpushare.controller.daemonset import daemon_set
from gpushare.controller.settings import OperatorSettings
from localcluster.kubectl import CommandError, Kubectl, Object
from localcluster.stack import NAMESPACE
from tests.cluster.harness import NODE, Harness, wait_until

AGENT, OPERATOR = "gpushare-agent", "gpushare-operator"
Change = Callable[[Object], Any]


def acting_as(harness: Harness, account: str, node: str | None = None) -> Kubectl:
    extra = [f"--as-user-extra=authentication.kubernetes.io/node-name={node}"] if node else []
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
    assert "share.gpushare.dev/<share>" in message


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
