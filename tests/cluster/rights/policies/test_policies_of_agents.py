"""What policies forbid an agent and a kubelet, by trying it with the very identity that they bind."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from gpushare.agent.dra.slices import resource_slice
from localcluster.kubectl import CommandError, Object
from localcluster.stack import NAMESPACE
from tests.cluster.harness import NODE, Harness, wait_until
from tests.cluster.rights.policies.requests import AGENT, OPERATOR, Change, acting_as, refusal


def gpu_node(name: str, **parts: Any) -> Object:
    return {"apiVersion": "gpushare.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": name}, **parts}


def makes_its_own_alone(harness: Harness, made: Callable[[str], Object]) -> None:
    """The agent makes such an object of its own node's name, and none of another's."""
    create, here = ("create", "-f", "-"), acting_as(harness, AGENT, node="here")
    here(*create, "--dry-run=server", stdin=json.dumps(made("here")))
    message, kind = refusal(here, *create, body=made("elsewhere")), made("here")["kind"]
    assert f'the agent on node "here" may write {kind} "here" alone, not "elsewhere"' in message
    refusal(acting_as(harness, AGENT), *create, body=made("here"))  # a token bound to no node


def test_an_agent_writes_the_gpunode_of_its_own_node_alone(harness: Harness) -> None:
    makes_its_own_alone(harness, gpu_node)


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
    makes_its_own_alone(harness, lease)
    wait_until("the Lease", lambda: harness.system.find("lease", NODE))
    acting_as(harness, AGENT, node=NODE)(*PATCH, "--dry-run=server", stdin=json.dumps(lease(NODE)))
    assert "alone, not" in refusal(acting_as(harness, AGENT, node="here"), *PATCH, body=lease(NODE))


def test_an_agent_cannot_take_the_operators_lease_on_a_node_of_that_name(harness: Harness) -> None:
    refusal(acting_as(harness, AGENT, node=OPERATOR), *PATCH, body=lease(OPERATOR))


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
    """A slice as the agent of `node` writes it."""
    return resource_slice(node, "0b7e42c1-9c1f-4f57-8f5e-2a6d1c3b4e5f", [])


def test_an_agents_own_slice_passes(harness: Harness) -> None:
    acting_as(harness, AGENT, node="here")("create", "--dry-run=server", "-f", "-", stdin=json.dumps(slice_of("here")))


SLICES: dict[str, tuple[str, Change]] = {
    "of another node": ("of that node", lambda obj: obj["spec"].update(nodeName="elsewhere")),
    "of every node": ("of that node", lambda obj: (obj["spec"].pop("nodeName"), obj["spec"].update(allNodes=True))),
    "of another driver": ("of that node", lambda obj: obj["spec"].update(driver="gpu.nvidia.com")),
    "in the pool of another node, which its generation makes void": (
        "pool",  # two policies refuse it
        lambda obj: obj["spec"].update(pool={"name": "elsewhere", "generation": 2**40, "resourceSliceCount": 1}),
    ),
    "of a pool that is never complete": (
        "of a pool named",
        lambda obj: obj["spec"]["pool"].update(resourceSliceCount=2),
    ),
    "beside its own": ("may write one ResourceSlice", lambda obj: obj["metadata"].update(name="second-gpushare.dev")),
    "that cannot be deleted": (
        "its own Node alone",
        lambda obj: obj["metadata"].update(finalizers=["gpushare.dev/kept"]),
    ),
    "owned by another node": (
        "its own Node alone",
        lambda obj: obj["metadata"]["ownerReferences"][0].update(name="elsewhere"),
    ),
}


@pytest.mark.parametrize("case", SLICES)
def test_an_agent_writes_no_slice(harness: Harness, case: str) -> None:
    words, change = SLICES[case]
    body = slice_of("here")
    change(body)
    assert words in refusal(acting_as(harness, AGENT, node="here"), "create", "-f", "-", body=body)


def test_a_kubelet_puts_no_device_into_the_pool_of_another_node(harness: Harness) -> None:
    """The kubelet uses its own credentials, which a compromised node has as well."""
    body = slice_of(NODE)
    body["metadata"]["name"] = "by-the-kubelet"
    kubelet = harness.kubectl.acting_as(f"--as=system:node:{NODE}", "--as-group=system:nodes")
    kubelet("create", "--dry-run=server", "-f", "-", stdin=json.dumps(body))
    body["spec"]["pool"] = {"name": "elsewhere", "generation": 2**40, "resourceSliceCount": 1}
    assert "in the pool of that node" in refusal(kubelet, "create", "-f", "-", body=body)
