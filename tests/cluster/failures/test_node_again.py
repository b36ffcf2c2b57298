"""Nodes that come: a Node object that was deleted is known again with all that its agent knows, and one on which no
Linux container runs gets no agent.

They stand alone: Kubernetes deletes the pods of a deleted node, those of other tests' shares among them.
"""

import signal

from localcluster.cluster import processes
from tests.cluster.failures.test_recovery import check_new_client
from tests.cluster.harness import NODE, Harness, wait_until


def test_a_node_object_deleted_and_made_again_is_known_again(harness: Harness) -> None:
    with harness.share("again", per_node=1) as share, harness.namespace() as tenant:
        (name,) = tenant.neighbours("again", 1)
        uid = harness.gpu_node()["metadata"]["uid"]
        harness.kubectl.delete("node", NODE)
        processes.replace(harness.layout, "kubelet", signal.SIGTERM)
        wait_until("the node again", lambda: harness.kubectl("label", "node", NODE, "pool=gpu", "--overwrite"))
        assert tenant.wait_event(name, "gpu-error")["code"] == 806, "its MPS pod had a second"
        tenant.delete_pods(name)
        wait_until("a new GpuNode", lambda: harness.gpu_node()["metadata"]["uid"] != uid, 60)
        harness.wait_component("agent")
        share.wait_ready(seconds=90)
        share.wait_capacity(8)
        check_new_client(tenant, share, "after")


def test_a_windows_node_and_a_virtual_one_get_no_agent(harness: Harness) -> None:
    """A Linux node that comes after them does: then the DaemonSet's controller has seen all three."""
    labels = {
        "windows": {"kubernetes.io/os": "windows"},
        "virtual": {"kubernetes.io/os": "linux", "type": "virtual-kubelet"},
        "fargate": {"kubernetes.io/os": "linux", "eks.amazonaws.com/compute-type": "fargate"},
        "linux": {"kubernetes.io/os": "linux"},
    }
    try:
        for name, given in labels.items():
            node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": given}}
            harness.kubectl.create(node)
        wait_until("an agent for the Linux node", lambda: "linux" in agents_wanted_on(harness), 60)
        assert set(agents_wanted_on(harness)) == {NODE, "linux"}
    finally:
        harness.kubectl.delete("node", *labels)
        # Bound to no node, since these have no room: so no deletion of a node's pods finds them.
        strays = [pod for node, pod in agents_wanted_on(harness).items() if node in labels]
        harness.system.delete("pods", *strays)


def agents_wanted_on(harness: Harness) -> dict[str, str]:
    """The names of the DaemonSet's pods by the node each is for, whether it runs there or not."""
    return {
        name: pod["metadata"]["name"]
        for pod in harness.system.items("pods", "--selector=app.kubernetes.io/component=agent")
        for term in pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
            "nodeSelectorTerms"
        ]
        for field in term.get("matchFields") or ()
        for name in field["values"]
    }
