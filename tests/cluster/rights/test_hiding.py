"""Pods that hide from the node agent, or keep a GPU from its share, with nothing but the rights of a namespace."""

from typing import Any

from tests.cluster.clients.test_observation import events, nobody_is_hurt, start_offender, wait_finding
from tests.cluster.harness import NODE, Harness, Tenant, wait_until

HASH = "0123456789abcdef" * 2
LONG = "a" * 199 + "-b"
"""A name whose first 200 characters become part of an event's name, which would end in `-`."""


def test_annotations_and_a_long_name_hide_no_use_above_the_grant(harness: Harness) -> None:
    with harness.share("seen", per_node=1, enforcement="Terminate"), harness.namespace(prefix="t") as tenant:
        names = tenant.neighbours("seen", 2)
        start_offender(tenant, LONG, "seen", annotations={"kubernetes.io/config.hash": HASH}, finally_do="linger")
        tenant.kubectl("annotate", "pod", LONG, "kubernetes.io/config.hash=" + HASH[::-1], "--overwrite")
        finding = wait_finding(harness, LONG)
        assert (finding["namespace"], finding["container"], finding["reason"]) == (
            tenant.name,
            "app",
            "MemoryAboveGrant",
        )
        wait_until("its event", lambda: events(tenant, LONG, "MemoryAboveGrant"), 20)
        assert tenant.wait_event(LONG, "gpu-error", 30)["code"] == 810
        nobody_is_hurt(tenant, names)


def test_the_kubelet_starts_nothing_for_a_false_mirror_pod_and_removes_it(harness: Harness) -> None:
    """What attributing a mirror's processes rests on: whoever says to be one has none."""
    with harness.namespace() as tenant:
        node = harness.kubectl.get("node", NODE)
        pod = plain_pod(tenant, "mirror")
        pod["metadata"] |= {
            "annotations": {"kubernetes.io/config.mirror": HASH, "kubernetes.io/config.hash": HASH},
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": node["metadata"]["uid"], "controller": True}
            ],
        }
        pod["spec"]["nodeName"] = NODE
        tenant.start(pod)
        started: list[Any] = []

        def removed() -> bool:
            mirror = tenant.kubectl.find("pod", "mirror") or {}
            started.extend((mirror.get("status") or {}).get("containerStatuses") or ())
            return not mirror

        wait_until("the mirror is removed", removed, 60)
        assert started == []


def test_a_pod_that_asks_for_no_nvidia_gpu_keeps_no_gpu_from_a_share(harness: Harness) -> None:
    with harness.namespace() as other:
        pod = plain_pod(other, "charted")
        [container] = pod["spec"]["containers"]
        # Not nvidia.com/gpu: a kubelet that once had a plugin for it fails every pod that names it, even with a zero.
        container["resources"] = {"limits": {"nvidia.com/mig-1g.18gb": "0"}}
        other.start(pod)
        wait_until("it runs", other.running, 60, lambda: other.explain("charted"))
        with harness.share("free", per_node=1), harness.namespace() as tenant:
            tenant.neighbours("free", 1)
        assert harness.gpu_node()["status"].get("foreignHolders", []) == []


def plain_pod(tenant: Tenant, name: str) -> Any:
    """A pod without a slot."""
    pod = tenant.pod(name, "none", command=["sleep", "3600"])
    pod["spec"]["containers"][0]["resources"] = {}
    return pod
