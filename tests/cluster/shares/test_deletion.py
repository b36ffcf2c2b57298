"""Deleting a GpuShare harms nobody, says what it waits for, and leaves the node as it was."""

import json

import pytest

from localcluster.kubectl import CommandError
from tests.cluster.harness import NODE, Harness, Share, Tenant, wait_until
from tests.cluster.tools.test_kubectl import plugin


def test_deleting_a_share_waits_for_its_clients_and_then_leaves_nothing(harness: Harness) -> None:
    """Also where it is deleted in the foreground, and a tenant keeps its object by one that names it as its owner."""
    with harness.share("leaving") as share, harness.namespace() as tenant:
        name = tenant.neighbours("leaving", 1)[0]
        owner = {key: share.get()[key] for key in ("apiVersion", "kind")} | {
            key: share.get()["metadata"][key] for key in ("name", "uid")
        }
        metadata = {"name": "keeps", "ownerReferences": [owner | {"blockOwnerDeletion": True}], "finalizers": ["a.b/c"]}
        tenant.kubectl.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
        harness.kubectl("delete", "gpushare", "leaving", "--cascade=foreground", "--wait=false")
        wait_until("the condition says what it waits for", lambda: "1 slot" in share.condition()["message"], 20,
                   lambda: share.condition())  # fmt: skip
        with pytest.raises(CommandError, match="being deleted"):
            tenant.start(tenant.pod("late", "leaving", "limits"))
        says_what_serves_still(harness, share)
        tenant.go_on([name])

        tenant.delete_pods(name)
        wait_until("it is told who keeps it", lambda: "blockOwnerDeletion" in share.condition()["message"], 60,
                   lambda: share.condition())  # fmt: skip
        wait_until("its GPUs are given back all the same", lambda: harness.gpu_dirs() == {}, 30)
        tenant.kubectl("patch", "configmap", "keeps", "--type=merge", '--patch={"metadata":{"finalizers":null}}')
        wait_until("the share is gone", lambda: not harness.kubectl.find("gpushare", "leaving"), 60)
        assert harness.compute_modes() == {"Default"}
        assert harness.gpu_node()["status"].get("daemons", []) == []
        assert harness.gpu_dirs() == {}
        assert not list(harness.in_node("/var/run/cdi").glob("*gpushare*"))
        assert not harness.system.items("daemonsets", "--selector=app.kubernetes.io/component=mps")
        labels = harness.kubectl.get("node", NODE)["metadata"]["labels"]
        assert not [label for label in labels if label.startswith("share.gpushare.dev/")]
        assert harness.capacity("leaving") == 0


def says_what_serves_still(harness: Harness, share: Share) -> None:
    """Conditions and `status` while GPUs with clients leave the share."""
    wait_until("daemons are said to serve", lambda: share.condition("DaemonsReady")["reason"] == "Draining", 30,
               lambda: share.get()["status"])  # fmt: skip
    assert "for the clients that run" in share.condition("DaemonsReady")["message"]
    enforced = share.condition("LimitsEnforced")
    assert (enforced["status"], enforced["reason"]) == ("True", "LimitsInForce")
    assert "for the clients that run" in enforced["message"]
    lines = [line.split() for line in plugin(harness, "status").stdout.splitlines()]
    busy = [line for line in lines if line[:1] == [NODE] and share.name in line and line[-1] != "0"]
    assert {line[-2] for line in busy} == {"Draining"}


def test_memory_that_no_gpu_has_is_loud_and_ends_nobody(harness: Harness) -> None:
    with harness.share("grown", per_node=1) as share, harness.namespace() as tenant:
        (name,) = tenant.neighbours("grown", 1)
        wait_until("its slot is known", lambda: sum(harness.held_by_gpu("grown").values()) == 1, 30)
        patch = json.dumps({"spec": {"clients": {"memory": {"default": "64Gi"}}}})
        harness.kubectl("patch", "gpushare", "grown", "--type=merge", f"-p={patch}")
        wait_until("Ready says why", lambda: "MemoryOvercommitted" in share.condition()["message"], 30,
                   lambda: share.condition())  # fmt: skip
        wait_until("an event says why", lambda: share.events(share.condition()["reason"]), 20,
                   lambda: share.condition())  # fmt: skip
        says_what_serves_still(harness, share)
        tenant.go_on([name])


def test_a_deleted_share_with_maxwait_ends_its_clients_in_order_and_goes(harness: Harness) -> None:
    with harness.share("hasty", maxWait="5s") as share, harness.namespace() as tenant:
        names = tenant.neighbours("hasty", 2)
        share.delete(wait=False)
        for name in names:
            assert tenant.wait_event(name, "gpu-error")["code"] == 810
            wait_until("it is told before and after", lambda name=name: told(tenant, name))
        wait_until("the share is gone", lambda: not harness.kubectl.find("gpushare", "hasty"), 60)
        assert harness.gpu_dirs() == {}


def told(tenant: Tenant, name: str) -> bool:
    return {"MaxWaitExpired", "ClientTerminated"} <= {event["reason"] for event in tenant.kubernetes_events(name)}


def test_an_agent_that_was_away_during_a_deletion_gives_the_gpus_back(harness: Harness) -> None:
    with harness.share("unattended") as share:
        away = '{"spec":{"template":{"spec":{"nodeSelector":{"gpushare-test":"%s"}}}}}'
        harness.system("patch", "daemonset", "gpushare-agent", "--type=merge", f"-p={away % 'away'}")
        try:
            wait_until("no agent", lambda: not harness.component_ready("agent"), 40)
            share.delete(wait=False)
            wait_until("it is told", lambda: "waiting for the agent" in share.condition()["message"], 20)
            assert harness.gpu_dirs()
        finally:
            back = away.replace('{"gpushare-test":"%s"}', "null")
            harness.system("patch", "daemonset", "gpushare-agent", "--type=merge", f"-p={back}")
        wait_until("the share is gone", lambda: not harness.kubectl.find("gpushare", "unattended"), 60)
        assert harness.gpu_dirs() == {}
        assert harness.compute_modes() == {"Default"}
        assert harness.capacity("unattended") == 0


def test_a_share_restored_from_a_copy_with_its_finalizer_can_be_deleted(harness: Harness) -> None:
    """A backup or GitOps restores like that: the finalizer is then another manager's, and an apply of ours cannot
    take it away."""
    with harness.share("first") as share:
        copy = share.get()
        share.delete()
        assert not harness.kubectl.find("gpushare", "first"), "without clients there is nothing to wait for"
        metadata = {"name": "first", "finalizers": copy["metadata"]["finalizers"]}
        harness.kubectl.apply({**copy, "metadata": metadata, "status": None})
        share.wait_ready()
        assert share.get()["metadata"]["finalizers"] == ["gpushare.dev/drain"]
        share.delete(wait=False)
        wait_until("the share is gone", lambda: not harness.kubectl.find("gpushare", "first"), 60)
