"""A Node object that was deleted comes back with all that its agent knows.

It stands alone: Kubernetes deletes the pods of a deleted node, those of other tests' shares among them.
"""

import signal

from localcluster.cluster import processes
from tests.cluster.failures.test_recovery import check_new_client
from tests.cluster.harness import NODE, Harness, wait_until


def test_a_node_object_deleted_and_made_again_is_known_again(harness: Harness) -> None:
    with harness.share("again", per_node=1) as share, harness.namespace() as tenant:
        uid = harness.gpu_node()["metadata"]["uid"]
        harness.kubectl.delete("node", NODE)
        processes.replace(harness.layout, "kubelet", signal.SIGTERM)
        wait_until("the node again", lambda: harness.kubectl("label", "node", NODE, "pool=gpu", "--overwrite"))
        wait_until("a new GpuNode", lambda: harness.gpu_node()["metadata"]["uid"] != uid, 60)
        harness.wait_component("agent")
        share.wait_ready(seconds=90)
        share.wait_capacity(8)
        check_new_client(tenant, share, "after")
