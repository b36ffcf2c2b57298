"""The way from a cluster to the writes that it needs, and to silence."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from gpushare.api.names import FINALIZER, LABEL_DRIVER_RELEASED
from gpushare.api.timestamps import format_timestamp
from gpushare.controller.apply import FIRST_BACKOFF
from gpushare.controller.differences import differences
from gpushare.controller.metrics import OperatorMeters
from gpushare.controller.reconcile import Reconciler
from gpushare.controller.settings import OperatorSettings
from gpushare.controller.writes import Write, WriteStage
from gpushare.kube.client import DAEMON_SETS, GPU_NODES, GPU_SHARES, NODES, KubeError
from gpushare.planner import plan
from gpushare.planner.driver_upgrade import STATE_LABEL
from gpushare.planner.status.share_summary import START_SECONDS
from tests.unit.clock import Clock
from tests.unit.controller.listing import relist
from tests.unit.fake_kube import FORBIDDEN, FakeKube

DAEMON_SET = "gpushare-mps-a-uid-a"
NOW = datetime(2026, 3, 1, tzinfo=UTC)
LABEL = "share.gpushare.dev/a"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def reconciler(kube: FakeKube, settings: OperatorSettings, clock: Clock) -> Reconciler:
    reconciler = Reconciler(kube, settings, OperatorMeters(CollectorRegistry()), lambda: NOW, clock)
    await relist(kube, reconciler)
    return reconciler


async def restarted(kube: FakeKube, settings: OperatorSettings) -> Reconciler:
    fresh = Reconciler(kube, settings, OperatorMeters(CollectorRegistry()), lambda: NOW)
    await relist(kube, fresh)
    return fresh


def daemon(**fields: Any) -> dict[str, Any]:
    limits = {"threads": 100, "memoryMib": 16384}
    return {
        "uuid": "GPU-1",
        "share": "a",
        "ready": True,
        "reason": "Ready",
        "desiredLimits": limits,
        "currentLimits": limits,
    } | fields


async def report(kube: FakeKube, reconciler: Reconciler, **status: Any) -> None:
    """The agent of n1 writes its status, having seen the latest assignments."""
    node = kube.live(GPU_NODES, "n1")
    observed = {"observedGeneration": node["metadata"]["generation"]}
    kube.put(GPU_NODES, {**node, "status": node["status"] | observed | status})
    await relist(kube, reconciler)


async def test_a_share_gets_its_finalizer_daemon_set_label_and_gpu_in_this_order(
    kube: FakeKube, reconciler: Reconciler
) -> None:
    assert await reconciler.once() == START_SECONDS, "no news: then what only started is a problem"
    assert kube.writes == [
        "apply gpushares/a",
        f"apply daemonsets/{DAEMON_SET}",
        "patch nodes/n1",
        "patch gpunodes/n1",
        "apply gpushares/a/status",
    ]
    assert kube.live(GPU_SHARES, "a")["metadata"]["finalizers"] == [FINALIZER]
    assert kube.live(NODES, "n1")["metadata"]["labels"] == {"pool": "gpu", LABEL: "true"}
    assert kube.live(GPU_NODES, "n1")["spec"]["assignments"] == [{"uuid": "GPU-1", "share": "a"}]


STARTUP = {"key": "gpushare.dev/agent-not-ready", "effect": "NoSchedule"}
OF_AUTOSCALER = {"key": "startup-taint.cluster-autoscaler.kubernetes.io/gpushare", "effect": "NoSchedule"}
OTHER = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}


async def test_a_new_node_loses_its_start_up_taints_alone_once_it_serves(
    kube: FakeKube, reconciler: Reconciler
) -> None:
    kube.put(NODES, {**kube.live(NODES, "n1"), "spec": {"taints": [STARTUP, OTHER, OF_AUTOSCALER]}})
    await relist(kube, reconciler)
    await reconciler.once()
    await report(kube, reconciler)
    await reconciler.once()
    assert len(kube.live(NODES, "n1")["spec"]["taints"]) == 3, "its daemon is not verified"
    node = kube.live(NODES, "n1")
    kube.put(NODES, {**node, "status": node["status"] | {"allocatable": {"gpushare.dev/a": "4"}}})
    await report(kube, reconciler, daemons=[daemon()])
    await reconciler.once()
    assert kube.live(NODES, "n1")["spec"]["taints"] == [OTHER]


async def test_a_taint_that_somebody_adds_at_that_moment_is_not_lost(
    kube: FakeKube, reconciler: Reconciler, clock: Clock
) -> None:
    node = kube.live(NODES, "n1")
    offered = node["status"] | {"allocatable": {"gpushare.dev/a": "4"}}
    kube.put(NODES, {**node, "spec": {"taints": [STARTUP]}, "status": offered})
    await relist(kube, reconciler)
    await reconciler.once()
    await report(kube, reconciler, daemons=[daemon()])
    kube.put(NODES, {**kube.live(NODES, "n1"), "spec": {"taints": [STARTUP, OTHER]}})
    await reconciler.once()
    assert kube.live(NODES, "n1")["spec"]["taints"] == [STARTUP, OTHER], "refused: of an older version"
    await relist(kube, reconciler)
    clock.now += FIRST_BACKOFF
    await reconciler.once()
    assert kube.live(NODES, "n1")["spec"]["taints"] == [OTHER]


async def test_a_driver_upgrade_sends_the_agent_away_last_and_back_first(
    kube: FakeKube, reconciler: Reconciler
) -> None:
    await reconciler.once()
    await report(kube, reconciler, daemons=[daemon()])
    await reconciler.once()

    async def upgrade(state: str) -> None:
        node = kube.live(NODES, "n1")
        labels = node["metadata"]["labels"] | {STATE_LABEL: state}
        kube.put(NODES, {**node, "metadata": node["metadata"] | {"labels": labels}})
        await relist(kube, reconciler)
        await reconciler.once()

    await upgrade("cordon-required")
    await report(kube, reconciler, daemons=[daemon(drained=True)])
    await reconciler.once()
    assert LABEL_DRIVER_RELEASED not in kube.live(NODES, "n1")["metadata"]["labels"], "the daemon has not ended"
    await report(kube, reconciler, daemons=[])
    await reconciler.once()
    assert not {LABEL, LABEL_DRIVER_RELEASED} & kube.live(NODES, "n1")["metadata"]["labels"].keys(), "one by one"
    await relist(kube, reconciler)
    await reconciler.once()
    assert kube.live(NODES, "n1")["metadata"]["labels"][LABEL_DRIVER_RELEASED] == "true"
    kube.writes.clear()
    await relist(kube, reconciler)
    await reconciler.once()
    assert kube.writes == []
    await upgrade("uncordon-required")
    assert LABEL_DRIVER_RELEASED not in kube.live(NODES, "n1")["metadata"]["labels"]


async def test_the_first_plan_is_begun_at_once_though_the_lists_have_just_come(reconciler: Reconciler) -> None:
    running = asyncio.create_task(reconciler.run())
    for _ in range(5):  # turns of the event loop, no time
        await asyncio.sleep(0)
    assert reconciler.stalled_seconds() or reconciler.reports
    running.cancel()
    await asyncio.wait([running])


async def test_what_is_as_planned_is_not_written_again(kube: FakeKube, reconciler: Reconciler) -> None:
    await reconciler.once()
    kube.writes.clear()
    await report(kube, reconciler, daemons=[daemon()])
    await reconciler.once()
    kube.writes.clear()
    assert await reconciler.once() is None
    assert kube.writes == []


async def test_a_restarted_operator_writes_nothing_that_differs(
    kube: FakeKube, reconciler: Reconciler, settings: OperatorSettings
) -> None:
    await reconciler.once()
    kube.writes.clear()
    version = kube.version
    fresh = await restarted(kube, settings)
    await fresh.once()
    await fresh.once()
    assert kube.version == version
    assert kube.writes == [f"apply daemonsets/{DAEMON_SET}"], "once, to learn which generation is ours"


async def test_a_write_that_fails_does_not_hold_up_the_others_and_is_tried_again(
    kube: FakeKube, reconciler: Reconciler, clock: Clock
) -> None:
    kube.fail("patch nodes/n1", FORBIDDEN)
    again = await reconciler.once()
    assert again is not None
    assert 0 < again <= 1
    assert kube.live(GPU_NODES, "n1")["spec"]["assignments"]
    kube.writes.clear()
    await reconciler.once()
    assert kube.writes == [], "not before its back-off is over"
    kube.heal()
    clock.now += 1.1
    assert await reconciler.once() == START_SECONDS
    assert kube.writes == ["patch nodes/n1"]


async def test_a_plan_takes_nothing_away_that_its_snapshot_lacks(
    kube: FakeKube, reconciler: Reconciler, settings: OperatorSettings
) -> None:
    """A share is deleted just as it gets its first GPU: the plan that saw neither label nor assignment must wait."""
    cache, text = reconciler.cache, format_timestamp(NOW)
    kube.fail("patch", FORBIDDEN)
    await reconciler.once()
    kube.heal()
    aware = cache.snapshot(NOW)
    due = differences(plan(aware), aware, cache, settings, text)
    to_node = [write for write in due if write.resource in (NODES, GPU_NODES)]
    unaware, versions = replace(aware, shares=()), cache.versions()
    decided = plan(unaware)
    assert (decided.assignments["n1"], decided.labels["n1"]) == ((), frozenset())
    for write in to_node:
        cache.observe(write.resource, await kube.patch(write.resource, write.name, write.body, manager=""))
    given = [kube.live(NODES, "n1"), kube.live(GPU_NODES, "n1")]
    later = differences(decided, unaware, cache, settings, text, versions, to_node)
    assert {write.resource for write in later} == {NODES, GPU_NODES}, "and nothing is done to the DaemonSet"
    for write in later:
        with pytest.raises(KubeError, match="resourceVersion"):
            await kube.patch(write.resource, write.name, write.versioned_body, manager="")
    assert [kube.live(NODES, "n1"), kube.live(GPU_NODES, "n1")] == given


async def test_a_share_is_not_released_while_its_objects_are_written(
    kube: FakeKube, reconciler: Reconciler, settings: OperatorSettings
) -> None:
    await reconciler.once()
    share = kube.live(GPU_SHARES, "a")
    kube.put(GPU_SHARES, {**share, "metadata": share["metadata"] | {"deletionTimestamp": "2026-02-02T00:00:00Z"}})
    kube.remove(DAEMON_SETS, DAEMON_SET)
    kube.put(NODES, {**kube.live(NODES, "n1"), "metadata": {"name": "n1", "labels": {}}})
    kube.put(GPU_NODES, {**kube.live(GPU_NODES, "n1"), "spec": {"assignments": []}})
    await relist(kube, reconciler)
    snapshot = reconciler.cache.snapshot(NOW)
    decided = plan(snapshot)
    assert decided.released == {"a"}
    text = format_timestamp(NOW)

    def stages(*unanswered: Write) -> list[WriteStage]:
        made = differences(decided, snapshot, reconciler.cache, settings, text, unanswered=unanswered)
        return [write.stage for write in made]

    assert stages() == [WriteStage.RELEASE]
    body = {"spec": {"assignments": [{"uuid": "GPU-1", "share": "a"}]}}
    assert stages(Write(WriteStage.ASSIGN, "merge", GPU_NODES, "n1", body, shares=frozenset("a"))) == []
    assert stages(Write(WriteStage.REPORT, "apply", GPU_SHARES, "a", {}, shares=frozenset("a"))) == [WriteStage.RELEASE]


async def test_what_was_answered_while_a_plan_was_made_is_not_written_again(
    kube: FakeKube, reconciler: Reconciler, settings: OperatorSettings
) -> None:
    before = reconciler.cache.snapshot(NOW)
    decided = plan(before)
    assert decided.finalizers == {"a"}
    await reconciler.once()
    later = differences(decided, before, reconciler.cache, settings, "2026-03-01T00:00:00Z")
    assert [write for write in later if write.stage in (WriteStage.HOLD, WriteStage.RUN)] == []


async def test_a_daemon_set_that_somebody_changed_is_put_right(kube: FakeKube, reconciler: Reconciler) -> None:
    await reconciler.once()
    edited = kube.live(DAEMON_SETS, DAEMON_SET)
    kube.put(DAEMON_SETS, edited | {"spec": edited["spec"] | {"updateStrategy": {"type": "RollingUpdate"}}})
    await report(kube, reconciler)
    await reconciler.once()
    assert kube.live(DAEMON_SETS, DAEMON_SET)["spec"]["updateStrategy"] == {"type": "OnDelete"}


async def test_a_deleted_share_lets_go_step_by_step(kube: FakeKube, reconciler: Reconciler) -> None:
    await reconciler.once()
    await report(kube, reconciler, daemons=[daemon()], holders=[{"uuid": "GPU-1", "share": "a", "slots": [2]}])
    share = kube.live(GPU_SHARES, "a")
    kube.put(GPU_SHARES, {**share, "metadata": share["metadata"] | {"deletionTimestamp": "2026-02-02T00:00:00Z"}})
    await report(kube, reconciler)

    await reconciler.once()
    leaving = {"uuid": "GPU-1", "share": "a", "draining": True, "waitingSince": "2026-03-01T00:00:00Z"}
    assert kube.live(GPU_NODES, "n1")["spec"]["assignments"] == [leaving]
    ready = kube.live(GPU_SHARES, "a")["status"]["conditions"][0]
    assert ready["reason"] == "Draining"
    assert ready["message"] == "1 slot on 1 GPU of node n1 is held; waiting for its container to end"

    await report(kube, reconciler, daemons=[daemon(drained=True)], holders=[])
    await reconciler.once()
    assert kube.live(GPU_NODES, "n1")["spec"]["assignments"] == []
    assert kube.has(DAEMON_SETS, DAEMON_SET)

    kube.writes.clear()
    await report(kube, reconciler, daemons=[])
    await reconciler.once()
    assert kube.writes == [f"delete daemonsets/{DAEMON_SET}", "patch nodes/n1"]

    kube.writes.clear()
    await report(kube, reconciler)
    await reconciler.once()
    assert kube.writes == ["patch gpushares/a"], "an apply takes nothing away that another manager wrote"
    assert kube.live(NODES, "n1")["metadata"]["labels"] == {"pool": "gpu"}
    assert not kube.has(GPU_SHARES, "a")


async def test_clients_of_a_vanished_share_keep_their_daemon_until_they_end(
    kube: FakeKube, reconciler: Reconciler
) -> None:
    await reconciler.once()
    holders = [{"uuid": "GPU-1", "share": "a", "slots": [0], "pods": ["ml/train"]}]
    await report(kube, reconciler, daemons=[daemon()], holders=holders)
    await reconciler.once()
    kube.remove(GPU_SHARES, "a")
    for _ in range(2):
        await report(kube, reconciler)
        await reconciler.once()
    assert kube.has(DAEMON_SETS, DAEMON_SET)
    await report(kube, reconciler, daemons=[daemon(drained=True)], holders=[])
    await reconciler.once()
    await report(kube, reconciler, daemons=[])
    await reconciler.once()
    assert not kube.has(DAEMON_SETS, DAEMON_SET)


async def test_a_share_that_cannot_be_held_gets_no_gpu(kube: FakeKube, reconciler: Reconciler, clock: Clock) -> None:
    kube.fail("apply gpushares/a", FORBIDDEN)
    for _ in range(2):  # the second time it waits for its back-off
        await reconciler.once()
    assert kube.live(GPU_NODES, "n1")["spec"].get("assignments") in (None, [])
    assert not kube.has(DAEMON_SETS, DAEMON_SET)
    kube.heal()
    clock.now += FIRST_BACKOFF
    await reconciler.once()
    assert kube.live(GPU_NODES, "n1")["spec"]["assignments"] == [{"uuid": "GPU-1", "share": "a"}]


async def test_the_daemon_set_of_a_live_share_outlasts_its_last_node(kube: FakeKube, reconciler: Reconciler) -> None:
    await reconciler.once()
    kube.remove(NODES, "n1")
    kube.remove(GPU_NODES, "n1")
    await relist(kube, reconciler)
    await reconciler.once()
    assert kube.live(GPU_SHARES, "a")["status"]["conditions"][0]["reason"] == "NoMatchingNodes"
    assert kube.has(DAEMON_SETS, DAEMON_SET)


async def test_a_share_stays_as_long_as_its_daemon_set_cannot_be_deleted(
    kube: FakeKube, reconciler: Reconciler
) -> None:
    await reconciler.once()
    share = kube.live(GPU_SHARES, "a")
    kube.put(GPU_SHARES, {**share, "metadata": share["metadata"] | {"deletionTimestamp": "2026-02-02T00:00:00Z"}})
    await report(kube, reconciler)
    await reconciler.once()
    kube.fail(f"delete daemonsets/{DAEMON_SET}", FORBIDDEN)
    await report(kube, reconciler)
    await reconciler.once()
    await report(kube, reconciler)
    assert await reconciler.once() is not None
    assert kube.has(GPU_SHARES, "a")


async def test_a_condition_keeps_its_time_while_its_status_stays(kube: FakeKube, reconciler: Reconciler) -> None:
    await reconciler.once()
    status = kube.live(GPU_SHARES, "a")["status"]
    old = [condition | {"lastTransitionTime": "2020-01-01T00:00:00Z"} for condition in status["conditions"]]
    kube.put(GPU_SHARES, kube.live(GPU_SHARES, "a") | {"status": status | {"conditions": old}})
    await report(kube, reconciler, daemons=[daemon(currentLimits=None)])
    await reconciler.once()
    times = {item["type"]: item["lastTransitionTime"] for item in kube.live(GPU_SHARES, "a")["status"]["conditions"]}
    assert times["Ready"] == "2020-01-01T00:00:00Z", "still False, though for another reason"
    assert times["DaemonsReady"] != "2020-01-01T00:00:00Z", "now True"


async def test_events_tell_each_change_once(kube: FakeKube, reconciler: Reconciler) -> None:
    await reconciler.once()
    await report(kube, reconciler, daemons=[daemon()])
    await reconciler.once()
    await reconciler.once()
    told = [(event["type"], event["reason"], event["regarding"]["name"]) for event in kube.events]
    assert told == [
        ("Normal", "GpuAssigned", "a"),
        ("Normal", "DaemonsStarting", "a"),
        ("Normal", "Ready", "a"),
    ]
    assert kube.events[0]["metadata"]["namespace"] == "default"
    assert kube.events[0]["note"] == "node n1: this share now has GPU-1"


async def test_a_gpu_that_leaves_is_given_back_once(kube: FakeKube, reconciler: Reconciler) -> None:
    """The agent that stops the daemon says `drained` no more: that does not make the GPU the share's again."""
    await reconciler.once()
    share = kube.live(GPU_SHARES, "a")
    kube.put(GPU_SHARES, {**share, "metadata": share["metadata"] | {"deletionTimestamp": "2026-02-02T00:00:00Z"}})
    steps = ({}, {"drained": True}, {"drained": True, "reason": "Stopping"}, {"ready": False, "reason": "Stopping"})
    for step in steps:
        await report(kube, reconciler, daemons=[daemon(**step)])
        await reconciler.once()
    moves = [event["reason"] for event in kube.events if event["action"] == "Assign"]
    assert moves == ["GpuAssigned", "GpuDraining", "GpuReleased"]


@pytest.mark.parametrize("hours", [3, -3], ids=["forward", "back"])
async def test_a_time_of_day_that_is_set_neither_shortens_nor_prolongs_a_wait(
    kube: FakeKube, settings: OperatorSettings, clock: Clock, hours: int
) -> None:
    wall = Clock(NOW.timestamp())
    reconciler = Reconciler(
        kube, settings, OperatorMeters(CollectorRegistry()), lambda: datetime.fromtimestamp(wall.now, UTC), clock
    )

    async def later(seconds: float) -> bool:
        """Tells whether clients are ended then."""
        wall.now, clock.now = wall.now + seconds, clock.now + seconds
        await relist(kube, reconciler)
        await reconciler.once()
        (assignment,) = kube.live(GPU_NODES, "n1")["spec"]["assignments"]
        assert assignment["draining"]
        return bool(assignment.get("terminateClients"))

    await relist(kube, reconciler)
    await reconciler.once()
    held = [{"uuid": "GPU-1", "share": "a", "slots": [0]}]
    await report(kube, reconciler, daemons=[daemon()], holders=held)
    share = kube.live(GPU_SHARES, "a")
    metadata = share["metadata"] | {"deletionTimestamp": "2026-02-02T00:00:00Z"}
    kube.put(GPU_SHARES, {**share, "metadata": metadata, "spec": share["spec"] | {"maxWait": "30m"}})
    assert not await later(1)
    wall.now += 3600 * hours
    kube.fail("patch gpunodes/n1", FORBIDDEN)
    assert not await later(600), "and it cannot be written at first"
    kube.heal()
    assert not await later(600)
    assert not await later(590)
    assert await later(20)


async def test_a_slot_given_out_at_the_last_moment_makes_the_gpu_drain_again(
    kube: FakeKube, reconciler: Reconciler
) -> None:
    await reconciler.once()
    share = kube.live(GPU_SHARES, "a")
    kube.put(GPU_SHARES, {**share, "metadata": share["metadata"] | {"deletionTimestamp": "2026-02-02T00:00:00Z"}})
    holders = [{"uuid": "GPU-1", "share": "a", "slots": [0]}]
    for status in ({"daemons": [daemon()]}, {"daemons": [daemon(drained=True)]}, {"holders": holders}):
        await report(kube, reconciler, **status)
        await reconciler.once()
    moves = [event["reason"] for event in kube.events if event["action"] == "Assign"]
    assert moves == ["GpuAssigned", "GpuDraining", "GpuReleased"]
    (draining,) = [event for event in kube.events if event["reason"] == "GpuDraining"]
    assert draining["series"]["count"] == 2, "told again, of the same GPU"
    (assignment,) = kube.live(GPU_NODES, "n1")["spec"]["assignments"]
    assert (assignment["uuid"], assignment["draining"]) == ("GPU-1", True)


async def test_the_status_of_an_earlier_agent_pends_and_takes_no_gpu_away(
    kube: FakeKube, reconciler: Reconciler
) -> None:
    await reconciler.once()
    await report(kube, reconciler, daemons=[daemon()])
    await reconciler.once()
    assigned = kube.live(GPU_NODES, "n1")["spec"]["assignments"]
    earlier = daemon()
    earlier |= {"wanted": earlier.pop("desiredLimits"), "inForce": earlier.pop("currentLimits")}
    await report(kube, reconciler, daemons=[earlier], computeModes="Manage")
    kube.writes.clear()
    await reconciler.once()
    assert kube.writes == ["apply gpushares/a/status"], "nothing but what is told"
    reasons = {item["type"]: item["reason"] for item in kube.live(GPU_SHARES, "a")["status"]["conditions"]}
    assert (reasons["LimitsEnforced"], reasons["DaemonsReady"]) == ("LimitsPending", "DaemonsReady")
    assert kube.live(GPU_NODES, "n1")["spec"]["assignments"] == assigned


async def test_a_share_that_cannot_be_read_stops_all_changes(kube: FakeKube, reconciler: Reconciler) -> None:
    await reconciler.once()
    share = kube.live(GPU_SHARES, "a")
    kube.put(GPU_SHARES, share | {"spec": share["spec"] | {"enforcement": "FromTheFuture"}})
    await report(kube, reconciler)
    kube.writes.clear()
    assert await reconciler.once() is not None
    assert kube.writes == []
