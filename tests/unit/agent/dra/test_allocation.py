"""What a claim was allocated here, and which claims are served by nobody."""

from typing import Any

import pytest

from gpushare.agent.dra.allocation import ClaimRefused, Part, allocation
from tests.unit.agent.dra.objects import POD_UID, UID, claim, result

TWO_USERS = [{"resource": "pods", "uid": "a"}, {"resource": "pods", "uid": "b"}]


def test_a_part_of_a_gpu_is_read_in_whole_percent_and_mib() -> None:
    claimed = allocation(claim(result(consumedCapacity={"threads": "10", "memory": "2147483649"})), UID, "n")
    assert claimed.parts == (Part("gpu", "gpu-0", "id-gpu", 10, 2048),)
    assert (claimed.namespace, claimed.name, claimed.pod_uid, claimed.for_slots) == ("ns", "c", POD_UID, False)


def test_what_other_drivers_gave_does_not_concern_us() -> None:
    other = result("nic", driver="nic.example.com", pool="elsewhere")
    assert [part.request for part in allocation(claim(other, result()), UID, "n").parts] == ["gpu"]


def test_the_schedulers_own_claim_has_a_part_for_each_container() -> None:
    claimed = allocation(claim(result("one"), result("two"), by_scheduler=True), UID, "n")
    assert claimed.for_slots
    assert [(part.request, part.share_id) for part in claimed.parts] == [("one", "id-one"), ("two", "id-two")]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (claim(uid="another"), "was made again"),
        (claim(result(driver="other")), "has no device of driver gpushare.dev"),
        (claim(allocation=None), "has no device"),
        (claim(result(pool="m")), "is allocated on node m, not on n"),
        (claim(result("one"), result("two")), "has 2 parts of GPUs"),
        (claim(result(), result(), by_scheduler=True), "several parts for one request"),
        (claim(result(adminAccess=True)), "adminAccess"),
        (claim(result(consumedCapacity={"threads": "10"})), "without memory: the cluster's feature gate"),
        (claim(result(consumedCapacity=None)), "without threads and memory"),
        (claim(result(consumedCapacity={"threads": "1e999999", "memory": "8Gi"})), "'1e999999' has an exponent beyond"),
        (claim(reservedFor=TWO_USERS), "reserved for 2 users"),
        (claim(reservedFor=[{"resource": "podgroups", "uid": "a"}]), "a claim is one container's of one pod"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_claim_that_cannot_be_served_is_refused_by_name(body: Any, words: str) -> None:
    with pytest.raises(ClaimRefused, match=r"^ResourceClaim ns/c ") as refused:
        allocation(body, UID, "n")
    assert words in str(refused.value)
