"""Events tell a change once; what changes back and forth counts up the event that stands there already."""

from localcluster.kubectl import Object
from tests.cluster.harness import Harness, Share, wait_until


def events_of(harness: Harness, share: Share, reason: str) -> list[Object]:
    """The events as events.k8s.io/v1 has them, with their series."""
    uid = share.get()["metadata"]["uid"]
    listed = harness.kubectl.within("default").items("events.events.k8s.io")
    return [event for event in listed if event["regarding"].get("uid") == uid and event["reason"] == reason]


def test_a_share_that_comes_and_goes_leaves_one_event_of_each_kind(harness: Harness) -> None:
    with harness.share("flaps", per_node=1) as share:
        for _ in range(2):
            share.apply(per_node=1, gpus={"products": ["NVIDIA Nothing"], "perNode": 1})
            wait_until("no GPU", lambda: share.condition().get("reason") == "ProductMismatch", 30, share.condition)
            share.apply(per_node=1)
            share.wait_ready()
        for reason, times in (("Ready", 3), ("ProductMismatch", 2)):
            events = wait_until(reason, lambda r=reason, n=times: counted(harness, share, r, n), 10)
            assert len(events) == 1, f"{reason} was told {len(events)} times"


def counted(harness: Harness, share: Share, reason: str, times: int) -> list[Object] | None:
    """Waits until one of them has been counted so often."""
    events = events_of(harness, share, reason)
    return events if any((event.get("series") or {}).get("count") == times for event in events) else None


def test_a_share_made_and_deleted_without_trouble_has_no_warning(harness: Harness) -> None:
    """Each of its GPUs comes, drains and goes once; its daemons' start is no problem."""
    with harness.share("smooth", per_node=1) as share:
        uid = share.get()["metadata"]["uid"]
    listed = harness.kubectl.within("default").items("events.events.k8s.io")
    told = [event for event in listed if event["regarding"].get("uid") == uid]
    assert [event["reason"] for event in told if event["type"] != "Normal"] == []
    moves = [event for event in told if event["action"] == "Assign"]
    assert sorted(move["reason"] for move in moves) == ["GpuAssigned", "GpuDraining", "GpuReleased"]
    assert not any(move.get("series") for move in moves), "none of them twice"
    assert {"DaemonsStarting", "Ready"} <= {event["reason"] for event in told}
