"""Many clients at once, made and deleted again and again, with the agent replaced in between: conformance.md."""

from collections.abc import Callable
from typing import Any

import pytest

from localcluster.kubectl import Object
from tests.cluster import claims
from tests.cluster.claims import HELD, SIZES, claim_specs
from tests.cluster.harness import NODE, Harness, Tenant, wait_until

pytestmark = pytest.mark.long

PODS = 15
PER_GPU = 8
GPUS = 2
SPECS: dict[str, dict[str, Any]] = {
    "slots": {"delivery": "DevicePlugin"},
    "claims": {"delivery": "ResourceClaim", "sizes": SIZES},
}
Pod = Callable[[Tenant, str], Object]


def by_slot(tenant: Tenant, name: str) -> Object:
    return tenant.pod(name, "busy", *HELD, grace=1)


def by_claim(tenant: Tenant, name: str) -> Object:
    return claims.sized(tenant, name, "busy", "small", grace=1)


@pytest.mark.parametrize(("delivery", "pod"), [("slots", by_slot), ("claims", by_claim)])
def test_rounds_of_clients_leave_nothing_though_the_agent_is_replaced(
    harness: Harness, rounds: int, delivery: str, pod: Pod
) -> None:
    with harness.share("busy", per_gpu=PER_GPU, **SPECS[delivery]) as share, harness.namespace() as tenant:
        share.wait_ready(gpus=GPUS)
        if delivery == "claims":
            claims.wait_template(tenant, "small", "busy")
        before = offered(harness, delivery)
        for number in range(rounds):
            names = [f"r{number}-{index}" for index in range(PODS)]
            tenant.start(*(pod(tenant, name) for name in names))
            if number % 2:
                wait_until("some run", lambda: len(tenant.running()) > PODS // 3, 60)
                harness.restart_pods("agent", force=True)
            for name in names:
                assert tenant.wait_event(name, "limits", 120)["problems"] == []
            assert sorted(held(harness)) == [PODS - PER_GPU, PER_GPU]
            if not number % 2:
                harness.restart_pods("agent", force=True)
            tenant.delete_pods()
            wait_until("nobody holds a part", lambda: not held(harness), 60, lambda: harness.gpu_node()["status"])
            wait_until("nothing is left", lambda: not left(harness, tenant), 60, lambda: left(harness, tenant))
            wait_until("all is offered again", lambda: offered(harness, delivery) == before, 60)


def held(harness: Harness) -> list[int]:
    """Parts held of each GPU."""
    return list(harness.held_by_gpu("busy").values())


def left(harness: Harness, tenant: Tenant) -> list[str]:
    names = [claim["metadata"]["name"] for claim in tenant.kubectl.items("resourceclaims")]
    return names + claim_specs(harness)


def offered(harness: Harness, delivery: str) -> object:
    if delivery == "slots":
        return harness.capacity("busy")
    devices = harness.kubectl.get("resourceslice", f"{NODE}-gpushare.dev")["spec"]["devices"]
    return [(device["name"], device["capacity"], device.get("taints")) for device in devices]
