"""MPS v3 on a node whose simulated driver is of release 615, and v2 on the same node once its driver is of release 580.

Against a stand-in that is held to NVIDIA's documentation: what is shown here is that our parts work together with it.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from localcluster.stack import install
from tests.cluster.clients.test_departure import ENDLESS_MS, ends
from tests.cluster.harness import NODE, Harness, Share, wait_until

AUTO = "--set=mps.protocol=Auto"
AMOUNTS = {"gpushare.dev/threads": "10", "gpushare.dev/memory": "4Gi"}


@pytest.fixture
def changed_driver(harness: Harness) -> Iterator[Harness]:
    """Afterwards the driver is as before, and v2 is spoken."""
    before = wait_until("a driver", lambda: harness.gpu_node()["status"].get("driverVersion"), 60)
    yield harness
    install(harness.stack)
    wait_until("the driver as before", lambda: harness.gpu_node()["status"].get("driverVersion") == before, 90)
    harness.wait_component("agent")


def with_driver(harness: Harness, version: str) -> Harness:
    """Replaces the driver without a share: to replace the driver ends what runs on its GPUs."""
    install(harness.stack, AUTO, f"--set-string=simulation.driverVersion={version}")
    wait_until("the driver", lambda: harness.gpu_node()["status"].get("driverVersion") == version, 90,
               lambda: harness.gpu_node()["status"])  # fmt: skip
    return harness


def protocols(harness: Harness) -> set[str]:
    return {daemon.get("protocol", "") for daemon in harness.gpu_node()["status"]["daemons"]}


def explained(harness: Harness, share: Share) -> str:
    return harness.system("logs", f"--selector=gpushare.dev/share={share.name}", "--container=mps", "--tail=-1")


def test_a_615_driver_serves_by_namespaces_and_a_580_driver_by_v2(
    changed_driver: Harness,
) -> None:
    served_by_namespaces(with_driver(changed_driver, "615.71.09"))
    served_by_v2(with_driver(changed_driver, "580.159.04"))


def served_by_namespaces(harness: Harness) -> None:
    """Checks that the daemon serves by namespaces, also through the departure of a neighbour in mid-kernel."""
    spec: dict[str, Any] = {"threads": {"default": 50, "max": 50}, "memory": {"default": "8Gi"}}
    with harness.share("spaces", per_node=1, **spec) as share, harness.namespace() as tenant:
        assert protocols(harness) == {"V3"}
        assert "MPS v3: driver 615.71.09 has it" in explained(harness, share)
        assert "MPS protocol:  V3" in harness.kubectl("gpushare", "describe", "node", NODE)
        tenant.start(
            tenant.pod("small", "spaces", "depart", annotations=AMOUNTS), tenant.pod("usual", "spaces", "depart")
        )
        for name, sms, gib in (("small", 12, 4), ("usual", 66, 8)):
            seen = tenant.wait_event(name, "limits")
            assert seen["problems"] == []
            assert (seen["observed"]["sms"], seen["granted"]["memory"]) == (sms, gib << 30)
        tenant.start(tenant.pod("victim", "spaces", "depart", "--role", "victim", "--kernel-ms", ENDLESS_MS, grace=3))
        tenant.wait_event("victim", "started")
        tenant.kubectl.delete("pod", "victim")
        assert len(ends(tenant, "victim")) == 1
        tenant.go_on(["small", "usual"])
        assert harness.gpu_node()["status"].get("findings", []) == []


def served_by_v2(harness: Harness) -> None:
    with harness.share("elder", per_node=1) as share, harness.namespace() as tenant:
        assert protocols(harness) == {"V2"}
        assert "MPS v2: v3 begins with driver 615, and this is 580.159.04" in explained(harness, share)
        tenant.start(tenant.pod("client", "elder", "limits"))
        assert tenant.wait_ended("client") == "Succeeded"
