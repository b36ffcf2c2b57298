"""Clients of a share that is delivered by ResourceClaim: each gets what its claim says, whatever befalls the node."""

import signal
from collections.abc import Iterator
from typing import Any

import pytest

from localcluster.cluster import processes
from localcluster.kubectl import CommandError, Object
from tests.cluster import claims
from tests.cluster.claims import SIZES, claim, with_claim
from tests.cluster.clients.test_gate import daemon_down, end_container, running
from tests.cluster.harness import NODE, Harness, Share, Tenant, holds_for, wait_until

SLICE = f"{NODE}-gpushare.dev"
SLOT = {"default": "4Gi", "max": "64Gi"}


@pytest.fixture(scope="module")
def share(harness: Harness) -> Iterator[Share]:
    """One GPU, of 132 SMs and 143,155 MiB."""
    threads = {"default": 20, "max": 60}
    with harness.share(
        "parts", per_node=1, delivery="ResourceClaim", sizes=SIZES, threads=threads, memory=SLOT
    ) as share:
        yield share


@pytest.fixture
def tenant(share: Share) -> Iterator[Tenant]:
    with claims.tenant_of(share) as tenant:
        yield tenant


def sized(tenant: Tenant, name: str, size: str, *arguments: str, **options: Any) -> Object:
    return claims.sized(tenant, name, "parts", size, *arguments, **options)


def claimed(tenant: Tenant, name: str, threads: str, memory: str) -> Object:
    return claims.claimed(tenant, name, "parts", threads, memory)


def limits(tenant: Tenant, name: str) -> tuple[int, int]:
    """(granted percent, granted bytes), which the client found in force: SMs, free memory, and a refusal above it."""
    seen = tenant.wait_event(name, "limits")
    assert seen["problems"] == []
    return seen["granted"]["threads"], seen["granted"]["memory"]


def counted(share: Share) -> tuple[int, str]:
    """(claims allocated, percent granted of those offered), by the share's status."""
    claims = share.get()["status"].get("claims") or {}
    return claims.get("allocated", 0), claims.get("threads", "")


def resource_slice(harness: Harness) -> Object:
    stored = harness.kubectl.find("resourceslice", SLICE)
    return stored or {"metadata": {}, "spec": {"devices": []}}


def test_the_node_offers_its_gpu_with_what_claims_may_take_of_it(harness: Harness, share: Share) -> None:
    (device,) = wait_until("the slice", lambda: resource_slice(harness)["spec"]["devices"])
    assert device["attributes"]["share"] == {"string": "parts"}
    assert device["attributes"]["multiprocessors"] == {"int": 132}
    assert device["allowMultipleAllocations"] is True
    capacity = {name: body["value"] for name, body in device["capacity"].items()}
    assert capacity == {"threads": "100", "memory": "142643Mi", "clients": "8"}
    assert harness.capacity("parts") == 0, "nobody gets a slot of the kubelet's"


def test_clients_of_one_gpu_get_each_what_its_claim_says(harness: Harness, share: Share, tenant: Tenant) -> None:
    tenant.start(
        claimed(tenant, "tiny", "5", "1Gi"),
        claimed(tenant, "odd", "33", "20000Mi"),
        sized(tenant, "small", "small"),
        tenant.pod("slot", "parts", "limits", "--hold", "3600"),
        tenant.pod("lowered", "parts", "limits", "--hold", "3600", annotations={"gpushare.dev/threads": "10"}),
    )
    assert limits(tenant, "tiny") == (5, 1 << 30)
    assert limits(tenant, "odd") == (33, 20000 << 20)
    assert limits(tenant, "small") == (10, 2 << 30)
    assert limits(tenant, "slot") == (20, 4 << 30)
    assert limits(tenant, "lowered") == (10, 4 << 30)
    wait_until("five have a part", lambda: sum(harness.held_by_gpu("parts").values()) == 5)
    wait_until("they are counted", lambda: counted(share) == (5, "88/100%"), 30, lambda: counted(share))
    findings = harness.gpu_node()["status"].get("findings", [])
    assert findings == [], "a client within its claim was found to use more than granted"


def test_a_claim_that_fits_nowhere_is_told_why_until_there_is_room(tenant: Tenant) -> None:
    tenant.start(sized(tenant, "half", "large"), sized(tenant, "other-half", "large"))
    for name in ("half", "other-half"):
        assert limits(tenant, name)[0] == 50
    tenant.start(sized(tenant, "third", "small"))

    def told() -> list[str]:
        events = tenant.kubectl.items("events", "--field-selector=reason=ClaimPending")
        return [event["message"] for event in events if event["involvedObject"]["name"].startswith("third")]

    (message,) = wait_until("why it is pending", told, 40)
    assert "10 percent of threads lack (10 asked, 0 left)" in message
    tenant.delete_pods("half")
    assert limits(tenant, "third") == (10, 2 << 30)


def test_what_a_tenants_pod_says_of_mps_does_not_count_beside_its_claim(harness: Harness, tenant: Tenant) -> None:
    pod = sized(tenant, "sly", "small")
    pod["spec"]["containers"][0]["env"] = [{"name": "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "value": "100"}]
    with pytest.raises(CommandError, match="CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"):
        tenant.start(pod)


def test_a_claim_for_two_containers_starts_none_of_them(tenant: Tenant) -> None:
    """Admission, which sees no claim that is made later, lets the pod pass; the node does not."""
    pod = with_claim(tenant.pod("twins", "parts", "limits", "--hold", "60"), resourceClaimName="later")
    [first] = pod["spec"]["containers"]
    pod["spec"]["containers"] = [first, first | {"name": "second"}]
    tenant.start(pod)
    tenant.kubectl.create(claim("later", "parts.gpushare.dev", {"threads": "5"}))

    def told() -> str:
        return next(
            (
                event["message"]
                for event in tenant.kubernetes_events("twins")
                if "is used by containers" in event["message"]
            ),
            "",
        )

    assert "app, second" in wait_until("why it does not start", told, 60, lambda: tenant.explain("twins"))
    assert not tenant.running()


def restart_agent(harness: Harness) -> None:
    harness.restart_pods("agent", force=True)


def restart_kubelet(harness: Harness) -> None:
    """It deletes the node's slices as it starts."""
    processes.replace(harness.layout, "kubelet", signal.SIGTERM)


def test_clients_go_on_while_agent_and_kubelet_restart_and_others_start(harness: Harness, tenant: Tenant) -> None:
    names = [f"stays-{number}" for number in range(2)]
    tenant.start(*(sized(tenant, name, "small", "depart", "--report-every", "0.3") for name in names))
    for name in names:
        tenant.wait_event(name, "progress")
    for accident in (restart_agent, restart_kubelet):
        before = {name: tenant.checks(name) for name in names}
        accident(harness)
        harness.wait_component("agent", 90)
        wait_until("the slice is back", lambda: resource_slice(harness)["spec"]["devices"], 90)
        for name in names:
            tenant.wait_checks(name, before[name])
        wait_until("two have a part", lambda: sum(harness.held_by_gpu("parts").values()) == 2)
        tenant.start(sized(tenant, "after", "small"))
        assert limits(tenant, "after") == (10, 2 << 30)
        tenant.delete_pods("after")


def test_a_restarted_container_waits_at_the_gate_and_has_its_grant_again(
    harness: Harness, share: Share, tenant: Tenant
) -> None:
    """The kubelet asks for nothing when it starts a container of a prepared claim again: the CDI specs alone decide."""
    tenant.start(sized(tenant, "again", "small", restart="Always"))
    assert limits(tenant, "again") == (10, 2 << 30)
    with daemon_down(harness, share):
        wait_until("not ready is told", lambda: share.condition()["status"] == "False")
        wait_until("its device is tainted", lambda: resource_slice(harness)["spec"]["devices"][0].get("taints"))
        end_container(harness, tenant, "again")
        tenant.start(sized(tenant, "late", "small"))
        wait_until("it is to start again", lambda: restarts(tenant, "again") > 0 or waits(tenant, "again"))
        holds_for("a client started without a daemon", lambda: not running(tenant), 8)
    for name in ("again", "late"):
        assert limits(tenant, name) == (10, 2 << 30)
    assert restarts(tenant, "again") > 0


def waits(tenant: Tenant, name: str) -> bool:
    statuses = tenant.kubectl.get("pod", name)["status"].get("containerStatuses") or [{}]
    return "waiting" in statuses[0].get("state", {})


def restarts(tenant: Tenant, name: str) -> int:
    statuses = tenant.kubectl.get("pod", name)["status"].get("containerStatuses") or [{}]
    return int(statuses[0].get("restartCount", 0)) if "running" in statuses[0].get("state", {}) else 0


def test_the_slice_is_made_again_as_soon_as_somebody_deletes_it(harness: Harness, share: Share) -> None:
    before = resource_slice(harness)["metadata"]["uid"]
    harness.kubectl.delete("resourceslice", SLICE)
    wait_until("another slice", lambda: resource_slice(harness)["metadata"].get("uid") not in (None, before), 10)
    version = resource_slice(harness)["metadata"]["resourceVersion"]
    holds_for(
        "the slice was written again", lambda: resource_slice(harness)["metadata"]["resourceVersion"] == version, 4
    )


def test_a_share_that_is_deleted_waits_for_its_claims_and_leaves_nothing(harness: Harness) -> None:
    with harness.share("leaves", per_node=1, delivery="ResourceClaim", sizes=SIZES) as share, \
         harness.namespace("leaves") as tenant:  # fmt: skip
        claims.wait_template(tenant, "small", "leaves")
        tenant.start(claims.sized(tenant, "client", "leaves", "small", "depart", "--report-every", "0.3"))
        tenant.wait_event("client", "progress")
        share.delete(wait=False)
        wait_until("its class is gone", lambda: not harness.kubectl.find("deviceclass", "leaves.gpushare.dev"))
        before = tenant.checks("client")
        tenant.wait_checks("client", before)
        assert harness.kubectl.find("gpushare", "leaves"), "it went although a client has a part of it"
        tenant.delete_pods("client")
        wait_until("the share is gone", lambda: not harness.kubectl.find("gpushare", "leaves"), 60)
    devices = resource_slice(harness)["spec"]["devices"]
    assert not [item for item in devices if item["attributes"]["share"] == {"string": "leaves"}]
