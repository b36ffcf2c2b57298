"""Deleting a GpuShare harms nobody, says what it waits for, and leaves the node as it was."""

import pytest

from localcluster.kubectl import CommandError
from tests.cluster.harness import NODE, Harness, wait_until


def test_deleting_a_share_waits_for_its_clients_and_then_leaves_nothing(harness: Harness) -> None:
    with harness.share("leaving") as share, harness.namespace() as tenant:
        name = tenant.neighbours("leaving", 1)[0]
        share.delete(wait=False)
        wait_until("the condition says what it waits for", lambda: "1 slot" in share.condition()["message"], 20,
                   lambda: share.condition())  # fmt: skip
        with pytest.raises(CommandError, match="being deleted"):
            tenant.start(tenant.pod("late", "leaving", "limits"))
        checks = tenant.checks(name)
        wait_until("the client goes on", lambda: tenant.checks(name) > checks)

        tenant.delete_pods(name)
        wait_until("the share is gone", lambda: not harness.kubectl.find("gpushare", "leaving"), 60)
        status = harness.gpu_node()["status"]
        assert {gpu["computeMode"] for gpu in status["gpus"]} == {"Default"}
        assert status.get("daemons", []) == []
        assert harness.gpu_dirs() == {}
        assert not list(harness.in_node("/var/run/cdi").glob("*gpushare*"))
        assert not harness.system.items("daemonsets", "--selector=app.kubernetes.io/component=mps")
        labels = harness.kubectl.get("node", NODE)["metadata"]["labels"]
        assert not [label for label in labels if label.startswith("share.gpushare.dev/")]
        assert harness.capacity("leaving") == 0


def test_deleting_a_share_without_clients_takes_seconds(harness: Harness) -> None:
    with harness.share("brief") as share:
        share.delete()
        assert not harness.kubectl.find("gpushare", "brief")
