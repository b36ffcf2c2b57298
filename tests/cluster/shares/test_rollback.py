"""A node goes from NVIDIA's device plugin to gpushare and back, as docs/upgrading.md says.

In the place of NVIDIA's plugin stands one of the test's own, which offers nvidia.com/gpu to the real kubelet.
"""

from contextlib import ExitStack
from typing import Any

from localcluster.kubectl import Object
from tests.cluster.delivery.other_plugin import other_plugin
from tests.cluster.harness import NODE, Harness, Share, Tenant, wait_until

NVIDIA = "nvidia.com/gpu"


def whole_gpu_pod(tenant: Tenant, name: str) -> Object:
    pod = tenant.pod(name, "none", command=["sleep", "3600"])
    pod["spec"]["containers"][0]["resources"] = {"limits": {NVIDIA: "1"}}
    return pod


def run_whole(tenant: Tenant, name: str) -> None:
    tenant.start(whole_gpu_pod(tenant, name))
    wait_until(f"{name} runs", lambda: name in {pod["metadata"]["name"] for pod in tenant.running()}, 30,
               lambda: tenant.explain(name))  # fmt: skip


def wait_unavailable(share: Share, reason: str, words: str = "") -> None:
    def told() -> bool:
        groups = share.get().get("status", {}).get("unavailable", [])
        return any(group["reason"] == reason and words in group["message"] for group in groups)

    wait_until(f"{reason} is told", told, 30, lambda: share.get().get("status"))


def test_a_node_is_taken_from_nvidias_plugin_only_when_its_pods_are_gone(harness: Harness) -> None:
    with harness.namespace() as tenant, ExitStack() as nvidia:
        nvidia.enter_context(other_plugin(harness, NVIDIA))
        run_whole(tenant, "whole")
        with harness.share("taking", ready=False) as share:
            wait_unavailable(share, "HeldByNvidiaPlugin", "offers nvidia.com/gpu")
            assert harness.compute_modes() == {"Default"}
            assert harness.gpu_dirs() == {}
            nvidia.close()
            wait_unavailable(share, "HeldByPods", "1 pod holds nvidia.com/gpu")
            tenant.delete_pods("whole")
            share.wait_ready()
            tenant.start(tenant.pod("client", "taking", "limits"))
            assert tenant.wait_event("client", "limits")["problems"] == []


def test_a_node_is_given_back_to_nvidias_plugin_once_its_clients_are_gone(harness: Harness) -> None:
    selector: dict[str, Any] = {"nodeSelector": {"matchLabels": {"pool": "gpu"}}}
    with harness.share("giving", **selector) as share, harness.namespace() as tenant:
        (name,) = tenant.neighbours("giving", 1)
        harness.kubectl("label", "node", NODE, "pool-")
        try:
            wait_until("the GPUs drain", lambda: share.get()["status"]["gpus"]["draining"], 20)
            checks = tenant.checks(name)
            wait_until("the client goes on", lambda: tenant.checks(name) > checks)
            tenant.delete_pods(name)
            wait_until("the node is given back", lambda: given_back(harness), 60, harness.gpu_node)
            assert harness.compute_modes() == {"Default"}
            assert harness.gpu_dirs() == {}
            assert not list(harness.in_node("/var/run/cdi").glob("*gpushare*"))
            wait_until("the kubelet's node says so", lambda: harness.capacity("giving") == 0, 60)
            with other_plugin(harness, NVIDIA):
                run_whole(tenant, "whole")
                harness.kubectl("label", "node", NODE, "pool=gpu")
                wait_unavailable(share, "HeldByNvidiaPlugin")
                assert harness.compute_modes() == {"Default"}
                tenant.delete_pods("whole")
        finally:
            harness.kubectl("label", "node", NODE, "pool=gpu", "--overwrite")


def given_back(harness: Harness) -> bool:
    node = harness.gpu_node()
    return not node["status"].get("daemons") and not node["spec"]["assignments"]
