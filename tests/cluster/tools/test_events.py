"""Events tell a change once; what changes back and forth counts up the event that stands there already."""

from localcluster.kubectl import Object
from tests.cluster.harness import Harness, Share, wait_until


def events_of(harness: Harness, share: Share, reason: str) -> list[Object]:
    """The events as events.k8s.io/v1 has them, with their series."""
    uid = share.get()["metadata"]["uid"]
    listed = harness.kubectl.within("default").items("events.events.k8s.io")
    return [it for it in listed if it["regarding"].get("uid") == uid and it["reason"] == reason]


def test_a_share_that_comes_and_goes_leaves_one_event_of_each_kind(harness: Harness) -> None:
    with harness.share("flaps", per_node=1) as share:
        for _ in range(2):
            share.apply(per_node=1, gpus={"products": ["NVIDIA Nothing"], "perNode": 1})
            wait_until("no GPU", lambda: share.condition().get("reason") == "ProductMismatch", 30, share.condition)
            share.apply(per_node=1)
            share.wait_ready()
        for reason, times in (("Ready", 3), ("ProductMismatch", 2)):
            found = wait_until(reason, lambda r=reason, n=times: counted(harness, share, r, n), 10)
            assert len(found) == 1, f"{reason} was told {len(found)} times"


def counted(harness: Harness, share: Share, reason: str, times: int) -> list[Object] | None:
    """Waits until one of them has been counted so often."""
    found = events_of(harness, share, reason)
    return found if any((it.get("series") or {}).get("count") == times for it in found) else None


def test_a_share_made_and_deleted_without_trouble_has_no_warning(harness: Harness) -> None:
    """Each of its GPUs comes, drains and goes once; its daemons' start is no problem."""
    with harness.share("smooth", per_node=1) as share:
        uid = share.get()["metadata"]["uid"]
    listed = harness.kubectl.within("default").items("events.events.k8s.io")
    told = [it for it in listed if it["regarding"].get("uid") == uid]
    assert [it["reason"] for it in told if it["type"] != "Normal"] == []
    moves = [it for it in told if it["action"] == "Assign"]
    assert sorted(it["reason"] for it in moves) == ["GpuAssigned", "GpuDraining", "GpuReleased"]
    assert not any(it.get("series") for it in moves), "none of them twice"
    assert {"DaemonsStarting", "Ready"} <= {it["reason"] for it in told}
