"""An operator that writes when nothing happens wears out etcd and hides what does happen."""

import time
from datetime import UTC, datetime
from typing import Any

from localcluster.kubectl import Object
from tests.cluster.harness import NODE, Harness, Tenant, wait_until
from tests.cluster.tools.test_metrics import Scraped

IDLE_SECONDS = 120
SETTLE_SECONDS = 45
"""The agent may write its last observation up to ten seconds after a change, the operator the slots in use 15 s after
that; and it says after two readings of the agent's heartbeat that it reports."""
UNUSED = "gpushare_container_unused_seconds"


def test_idle_for_two_minutes_nothing_is_written_but_who_has_no_client(harness: Harness) -> None:
    """Leases are the one exception, the operator's and each agent's: holding one is what renewing means.

    A container without a client for two minutes is listed once: it is the one change within that time.
    """
    with harness.share("still") as share, harness.namespace() as tenant:
        tenant.start(tenant.pod("sleeper", "still", "limits", command=["sleep", "3600"]))
        kernels = ("depart", "--role", "victim", "--kernel-ms", "1000", "--on-sigterm", "finish")
        tenant.start(tenant.pod("busy", "still", *kernels))
        tenant.neighbours("still", 2)
        wait_until("the agent knows who has a client", lambda: unused(harness, tenant) == ["sleeper"], 60)
        share.wait_ready()
        time.sleep(SETTLE_SECONDS)
        since = datetime.now(UTC)
        holders = wait_until("its GpuNode says so", lambda: listed(harness), 180)
        assert [(part["namespace"], part["pod"], part["container"]) for part in holders] == [
            (tenant.name, "sleeper", "app")
        ]
        assert holders[0]["heldSince"] == holders[0]["unusedSince"]
        assert unused(harness, tenant) == ["sleeper"]
        time.sleep(max(0.0, IDLE_SECONDS - (datetime.now(UTC) - since).total_seconds()))
        assert [(part, path.partition("?")[0]) for part, path in writes(harness, since)] == [
            ("agent", f"/apis/gpushare.dev/v1alpha1/gpunodes/{NODE}/status")
        ]
        assert listed(harness) == holders
        tenant.delete_pods("sleeper")
        wait_until("it is forgotten", lambda: not listed(harness), 60)


def writes(harness: Harness, since: datetime) -> list[tuple[str, str]]:
    """(part of ours, path) of each write to the API server from then on, without those to Leases."""
    return [
        (line["user"]["username"].rpartition(":gpushare-")[2], line["requestURI"])
        for line in harness.audit()
        if line["stageTimestamp"] > since.isoformat()
        and line["verb"] in ("create", "update", "patch", "delete")
        and "gpushare" in line["user"]["username"]
        and line["objectRef"]["resource"] != "leases"
    ]


def listed(harness: Harness) -> list[Object]:
    return list(harness.gpu_node()["status"].get("unused", []))


def unused(harness: Harness, tenant: Tenant) -> list[Any]:
    """The tenant's pods that hold a part without a client, as the agent's metrics have them."""
    labels = [sample.labels for sample in Scraped(harness, "agent").samples if sample.name == UNUSED]
    return [label["pod"] for label in labels if label["namespace"] == tenant.name]
