"""Limits above what is reserved: who borrows is told, and goes first where the share says so and the GPU is short."""

from pathlib import Path
from typing import Any

import pytest

from localcluster.kubectl import CommandError, Object
from tests.cluster.claims import claim, with_claim
from tests.cluster.harness import Harness, Share, Tenant, condition, holds_for, wait_until

PROGRAM = (Path(__file__).parent / "borrower.py").read_text()
GPU_MIB = 143_155
RESERVED = 61_440
LIMITS = {"max": "120Gi", "overcommitPercent": 200, "gracePeriod": "6s"}
MEMORY = {"default": "60Gi", "limits": LIMITS}
TERMINATE = {**MEMORY, "limits": {**LIMITS, "whenShort": "Terminate"}}
LIMIT = {"gpushare.dev/memory-limit": "120Gi"}
TOLD_SECONDS = 30


def program(tenant: Tenant, name: str, share: str, *steps: int, **options: Any) -> Object:
    return tenant.pod(name, share, command=["python3", "-c", PROGRAM, *map(str, steps)], **options)


def borrowers(harness: Harness) -> dict[str, dict[str, Any]]:
    return {entry["pod"]: entry for entry in harness.gpu_node().get("status", {}).get("borrowers", [])}


def reasons(tenant: Tenant, pod: str) -> list[str]:
    return [event["reason"] for event in tenant.kubernetes_events(pod)]


def pressure(harness: Harness) -> dict[str, Any]:
    return condition(harness.gpu_node(), "MemoryPressure")


def start_borrower(tenant: Tenant, name: str, share: str, mib: int = 110_000, **options: Any) -> None:
    tenant.start(program(tenant, name, share, mib, annotations=LIMIT, **options))
    assert tenant.wait_event(name, "taken")["refused"] == 0


def is_told(harness: Harness, name: str) -> None:
    borrower = wait_until(f"{name} is told to borrow", lambda: borrowers(harness).get(name), TOLD_SECONDS)
    assert (borrower["reservedMib"], borrower["limitMib"]) == (RESERVED, 2 * RESERVED)
    assert borrower["observedMib"] >= 110_000


def ended_for_the_other(harness: Harness, tenant: Tenant, borrower: str, other: str) -> None:
    """The borrower had notice before it was ended, and the other one got its memory then."""
    tenant.wait_event(other, "refused", 30)
    error = tenant.wait_event(borrower, "gpu-error", 60)
    assert error["code"] == 810
    taken = tenant.wait_event(other, "taken", 60)
    assert taken["refused"] > 0
    assert taken["at"] >= error["at"]
    wait_until("both events", lambda: {"MemoryShort", "ClientTerminated"} <= set(reasons(tenant, borrower)), 20)
    messages = {event["reason"]: event["message"] for event in tenant.kubernetes_events(borrower)}
    assert "ended in 6 s" in messages["MemoryShort"]
    assert "whenShort: Terminate" in messages["ClientTerminated"]
    wait_until("nobody borrows any more", lambda: not borrowers(harness), TOLD_SECONDS, lambda: borrowers(harness))
    wait_until("no pressure", lambda: pressure(harness).get("status") == "False", TOLD_SECONDS)
    before = len(tenant.events_of(other, "check"))
    wait_until(f"{other} goes on", lambda: len(tenant.events_of(other, "check")) > before, 20)
    assert not tenant.events_of(other, "gpu-error")
    assert "ClientTerminated" not in reasons(tenant, other)


def test_a_borrower_goes_with_notice_when_another_asks_for_its_reservation(harness: Harness) -> None:
    with harness.share("lends", per_node=1, per_gpu=2, memory=TERMINATE), harness.namespace() as tenant:
        start_borrower(tenant, "borrower", "lends")
        assert tenant.events_of("borrower", "started")[0]["limit"] == str(2 * RESERVED << 20)
        is_told(harness, "borrower")
        top = harness.kubectl("gpushare", "top", "-A")
        assert "BORROWED" in top
        status = harness.kubectl("gpushare", "status")
        for part in ("RESERVED", "60Gi (42%)", "120Gi (85%)", f"{tenant.name}/borrower"):
            assert part in status, status
        holds_for("it goes on while nobody is short", lambda: not tenant.events_of("borrower", "gpu-error"), 10)
        tenant.start(program(tenant, "other", "lends", 50_000))
        ended_for_the_other(harness, tenant, "borrower", "other")


def test_with_the_default_policy_nobody_is_ended(harness: Harness) -> None:
    with harness.share("tells", per_node=1, per_gpu=2, memory=MEMORY), harness.namespace() as tenant:
        start_borrower(tenant, "borrower", "tells")
        is_told(harness, "borrower")
        tenant.start(program(tenant, "other", "tells", 50_000))
        tenant.wait_event("other", "refused", 30)
        wait_until("it is told", lambda: "MemoryShort" in reasons(tenant, "borrower"), 30)
        shortage = wait_until("pressure", lambda: pressure(harness).get("status") == "True" and pressure(harness), 30)
        assert shortage["reason"] == "MemoryShort"
        holds_for("both go on", lambda: len(tenant.running()) == 2, 20)
        assert not tenant.events_of("other", "taken")
        (told,) = [
            event["message"] for event in tenant.kubernetes_events("borrower") if event["reason"] == "MemoryShort"
        ]
        assert "Nobody is ended (whenShort: Audit)" in told
        tenant.delete_pods("borrower")
        assert tenant.wait_event("other", "taken", 30)["refused"] > 0


def test_mps_holds_each_client_to_its_own_limit(harness: Harness) -> None:
    """A neighbour's limit, and the daemon's own, which is the share's maximum, widen nobody's."""
    with harness.share("bounds", per_node=1, per_gpu=2, memory=MEMORY), harness.namespace() as tenant:
        start_borrower(tenant, "borrower", "bounds", 70_000)
        tenant.start(program(tenant, "plain", "bounds", RESERVED + 1))
        tenant.wait_event("plain", "refused")
        holds_for("it is refused", lambda: not tenant.events_of("plain", "taken"), 5)


def _claimed(tenant: Tenant, name: str, share: str, burst: str, *steps: int) -> Object:
    amounts = {"threads": "25", "memory": "60Gi", **({"memoryBurst": burst} if burst else {})}
    tenant.kubectl.create(claim(name, f"{share}.gpushare.dev", amounts))
    return with_claim(program(tenant, name, share, *steps), resourceClaimName=name)


@pytest.fixture
def claims_lend(harness: Harness) -> Any:
    sizes = [{"name": "burst", "threads": 25, "memory": "60Gi", "memoryLimit": "120Gi"}]
    spec: dict[str, Any] = {"delivery": "ResourceClaim", "sizes": sizes, "memory": TERMINATE}
    with harness.share("claims-lend", per_node=1, per_gpu=2, **spec) as share:
        yield share


def test_claims_borrow_within_what_the_scheduler_adds_up(harness: Harness, claims_lend: Share) -> None:
    with harness.namespace() as tenant:
        tenant.start(_claimed(tenant, "borrower", "claims-lend", "60Gi", 110_000))
        assert tenant.wait_event("borrower", "taken")["refused"] == 0
        is_told(harness, "borrower")
        tenant.start(_claimed(tenant, "other", "claims-lend", "", 50_000))
        ended_for_the_other(harness, tenant, "borrower", "other")
        with pytest.raises(CommandError, match="write at most 60Gi"):
            tenant.kubectl.create(
                claim("greedy", "claims-lend.gpushare.dev", {"memory": "60Gi", "memoryBurst": "61Gi"})
            )


def test_the_operator_takes_no_gpu_whose_limits_exceed_the_shares_percent(harness: Harness) -> None:
    limits = {"max": "120Gi"}
    with harness.share("far", ready=False, per_node=1, per_gpu=2, memory={"default": "60Gi", "limits": limits}) as far:

        def refused() -> bool:
            # Another GPU may be in use for a moment, by the daemon of a share that has just gone.
            unavailable = far.get().get("status", {}).get("unavailable", ())
            return any("raise memory.limits.overcommitPercent, which is 100" in gpu["message"] for gpu in unavailable)

        wait_until("it is refused", refused, 30, far.get)
