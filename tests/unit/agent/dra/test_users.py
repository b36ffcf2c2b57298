"""Which containers use which claims, and which uses are refused."""

import pytest

from gpushare.agent.dra.allocation import ClaimRefused, allocation
from gpushare.agent.dra.users import Use, check, uses
from tests.unit.agent.dra.objects import UID, claim, container, pod, result, slot_pod

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


def test_an_init_container_with_a_claim_must_be_a_sidecar() -> None:
    early = pod(container("main", "nic"), claims={"gpu": "c", "nic": "n"})
    early["spec"]["initContainers"] = [container("before")]
    with pytest.raises(
        ClaimRefused, match="init container before uses ResourceClaim ns/c: one that ends has no preStop"
    ):
        check(CLAIM, early, [])
    early["spec"]["initContainers"] = [container("before", restartPolicy="Always")]
    check(CLAIM, early, [])


def test_a_pod_whose_claim_the_webhook_did_not_see_does_not_start() -> None:
    slot = container()
    slot["resources"]["limits"] = {"gpushare.dev/a": "1"}
    with pytest.raises(ClaimRefused, match=r"container app uses ResourceClaim ns/c beside gpushare\.dev/a: it reaches"):
        check(CLAIM, pod(slot), [])
    late = pod(container(lifecycle={}))
    with pytest.raises(ClaimRefused, match=r"has no preStop hook.* make the pod again after its claim or template"):
        check(CLAIM, late, [])
    check(CLAIM, pod(container(), container("sidecar", "nic", lifecycle={}), claims={"gpu": "c", "nic": "n"}), [])
    late["spec"]["terminationGracePeriodSeconds"] = 1  # the webhook adds none either
    check(CLAIM, late, [])


def test_a_claim_of_the_scheduler_gives_each_container_one_part() -> None:
    """Whoever forges its mark has a claim of several requests, and could reach a GPU by each."""
    forged = allocation(claim(result("one"), result("two"), name="slots", by_scheduler=True), UID, "n")
    with pytest.raises(ClaimRefused, match="container app uses 2 parts of ResourceClaim ns/slots: it reaches one GPU"):
        check(forged, pod(container(), claims={"gpu": "slots"}), [])
    one_by_one = container()
    one_by_one["resources"]["claims"] = [{"name": "gpu", "request": "one"}, {"name": "gpu", "request": "two"}]
    with pytest.raises(ClaimRefused, match="uses 2 parts"):
        check(forged, pod(one_by_one, claims={"gpu": "slots"}), [])
    parts = claim(result("container-0-request-0"), result("container-1-request-0"), name="slots", by_scheduler=True)
    check(allocation(parts, UID, "n"), slot_pod({"app": {}, "second": {}}), [])
