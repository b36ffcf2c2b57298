"""Which containers use which claims, and which uses are refused."""

import pytest

from gpushare.agent.dra.allocation import ClaimRefused, allocation
from gpushare.agent.dra.users import Use, check, uses
from tests.unit.agent.dra.objects import UID, claim, container, pod, slot_pod

CLAIM = allocation(claim(), UID, "n")


def test_uses_are_found_by_name_by_template_and_by_slot() -> None:
    both = pod(container("app", "gpu", "nic"), claims={"gpu": "c", "nic": "n"})
    assert list(uses(both)) == [Use("app", "c"), Use("app", "n")]
    made = pod(container(), claims={}, resourceClaimStatuses=[{"name": "gpu", "resourceClaimName": "p-gpu-x"}])
    assert list(uses(made)) == [Use("app", "p-gpu-x")]
    assert list(uses(pod(container(), claims={}))) == [], "its claim is not made yet"
    assert list(uses(slot_pod({"app": {}}))) == [Use("app", "slots", "container-0-request-0")]


def test_one_container_reaches_one_gpu_by_one_claim() -> None:
    check(CLAIM, pod(), [])
    check(CLAIM, pod(container("app"), container("other", "nic"), claims={"gpu": "c", "nic": "n"}), ["n"])
    with pytest.raises(ClaimRefused, match="used by containers app, second"):
        check(CLAIM, pod(container("app"), container("second")), [])
    with pytest.raises(ClaimRefused, match="uses ResourceClaim ns/c and ResourceClaim ns/d"):
        check(CLAIM, pod(container("app", "gpu", "more"), claims={"gpu": "c", "more": "d"}), ["d"])
    check(CLAIM, pod(container("app", "gpu", "more"), claims={"gpu": "c", "more": "d"}), ["e"])
