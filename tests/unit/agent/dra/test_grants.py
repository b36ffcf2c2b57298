"""The grant of a container, from its claim's allocation."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.agent.dra.allocation import ClaimRefused, allocation
from gpushare.agent.dra.grants import check_share, granted
from gpushare.api.client_class import ClientClass
from gpushare.grant.environment import client_environment
from gpushare.grant.model import Grant
from tests.unit.agent.dra.objects import UID, claim, container, pod, result, share, slot_pod

SLOTS = allocation(claim(result("container-0-request-0"), name="slots", by_scheduler=True), UID, "n")
CLAIM = allocation(claim(), UID, "n")


def with_environment(threads: int, memory_mib: int, name: str = "a") -> dict[str, Any]:
    return slot_pod({"app": client_environment(Grant(name, threads, memory_mib, 1), None)})


def test_a_claim_grants_its_allocation_and_the_shares_processes() -> None:
    clients = {"perGpu": 8, "processes": 2, "memory": {"default": "4Gi"}}
    assert granted(CLAIM, CLAIM.parts[0], share(clients=clients), pod()) == Grant("a", 10, 2048, 2)


@given(st.integers(1, 60), st.integers(64, 65536))
def test_a_slots_annotations_lower_its_claim_and_never_raise_it(threads: int, memory_mib: int) -> None:
    grant = granted(SLOTS, SLOTS.parts[0], share(), with_environment(threads, memory_mib))
    assert (grant.threads, grant.memory_mib) == (min(threads, 10), min(memory_mib, 2048))


def test_variables_of_another_share_or_of_a_claims_pod_count_for_nothing() -> None:
    assert granted(SLOTS, SLOTS.parts[0], share(), with_environment(1, 512, "b")).threads == 10
    own = container(env=client_environment(Grant("a", 1, 512, 1), None))
    assert granted(CLAIM, CLAIM.parts[0], share(), pod(own)).threads == 10


@pytest.mark.parametrize(
    ("consumed", "words"),
    [
        ({"threads": "61", "memory": "2Gi"}, "allocated 61 percent of threads"),
        ({"threads": "10", "memory": "65Gi"}, "allocated 65Gi of memory"),
    ],
)
def test_more_than_the_share_allows_by_now_is_refused(consumed: dict[str, str], words: str) -> None:
    claimed = allocation(claim(result(consumedCapacity=consumed)), UID, "n")
    with pytest.raises(ClaimRefused, match=words):
        granted(claimed, claimed.parts[0], share(), pod())


def test_a_share_serves_claims_of_its_namespaces_alone_and_only_by_claims() -> None:
    chosen = share(allowedNamespaces={"matchLabels": {"team": "ml"}})
    check_share(CLAIM, chosen, {"team": "ml"})
    with pytest.raises(ClaimRefused, match="does not allow namespace ns"):
        check_share(CLAIM, chosen, {"team": "web"})
    with pytest.raises(ClaimRefused, match="delivered by DevicePlugin"):
        check_share(CLAIM, share(delivery="DevicePlugin"), {})


BORROWING = {"threads": "10", "memory": "2Gi", "memoryBurst": "6Gi", "clients": "1"}
LENDING = {"perGpu": 8, "memory": {"default": "4Gi", "limits": {"max": "8Gi", "overcommitPercent": 200}}}


def test_a_claim_that_borrows_is_granted_the_limit_that_was_allocated() -> None:
    own = allocation(claim(result(consumedCapacity=BORROWING)), UID, "n")
    grant = granted(own, own.parts[0], share(clients=LENDING), pod())
    assert (grant.memory_mib, grant.limit_mib) == (2048, 8192)


def test_a_claim_whose_limit_the_share_allows_no_more_is_refused() -> None:
    own = allocation(claim(result(consumedCapacity=BORROWING)), UID, "n")
    less = {**LENDING, "memory": {"default": "4Gi", "limits": {"max": "7Gi", "overcommitPercent": 200}}}
    with pytest.raises(ClaimRefused, match="8Gi of memory, 6Gi of it to borrow, and GpuShare"):
        granted(own, own.parts[0], share(clients=less), pod())


CLASSES = {"perGpu": 8, "memory": {"default": "4Gi"}, "classes": {"protected": {"namespaces": ["web"]}}}
BATCH = {"name": "batch", "threads": 10, "memory": "2Gi", "class": "BestEffort"}


def of_size(name: str) -> Any:
    body = claim()
    device_class = {"exactly": {"deviceClassName": f"{name}.a.gpushare.dev"}}
    body["spec"] = {"devices": {"requests": [{"name": "gpu", **device_class}]}}
    return allocation(body, UID, "n")


def test_a_claims_class_is_its_sizes_unless_its_pod_names_another() -> None:
    own, classes = of_size("batch"), share(clients=CLASSES, sizes=[BATCH])
    grant = granted(own, own.parts[0], classes, pod())
    assert (grant.client_class, grant.threads_beside_protected) == (ClientClass.BEST_EFFORT, 50)
    named = pod()
    named["metadata"]["annotations"] = {"gpushare.dev/class": "Normal"}
    grant = granted(own, own.parts[0], classes, named)
    assert (grant.client_class, grant.threads_beside_protected) == (ClientClass.NORMAL, 0)
    assert granted(CLAIM, CLAIM.parts[0], classes, pod()).client_class is ClientClass.NORMAL
    assert granted(CLAIM, CLAIM.parts[0], share(), pod()).client_class is None


def test_a_claims_pod_that_may_not_be_protected_is_refused() -> None:
    named = pod()
    named["metadata"]["annotations"] = {"gpushare.dev/class": "Protected"}
    with pytest.raises(ClaimRefused, match=r'pod p: metadata.*"Protected" is not for namespace "ns"'):
        granted(CLAIM, CLAIM.parts[0], share(clients=CLASSES), named)
