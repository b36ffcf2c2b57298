"""The roll-out of a new template, step by step, through the whole reconcile."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from gpushare.api.timestamps import format_timestamp
from gpushare.controller.differences import differences
from gpushare.controller.metrics import OperatorMeters
from gpushare.controller.reconcile import Reconciler
from gpushare.controller.settings import OperatorSettings
from gpushare.controller.writes import Write, WriteStage
from gpushare.kube.client import DAEMON_SETS, GPU_NODES, GPU_SHARES, PODS
from gpushare.planner import plan
from tests.unit.controller.listing import relist
from tests.unit.controller.mps_pods import CREATED, DAEMON_SET, container, pod
from tests.unit.fake_kube import FakeKube


class Rolling:
    """The share of the fake cluster, served by a pod that is made from another template than its DaemonSet."""

    def __init__(self, kube: FakeKube, settings: OperatorSettings) -> None:
        self.kube, self.settings = kube, settings
        self.now = datetime(2026, 3, 1, tzinfo=UTC)
        self.reconciler = Reconciler(kube, settings, OperatorMeters(CollectorRegistry()), lambda: self.now)

    async def begin(self) -> None:
        await self.again()
        live = self.kube.live(DAEMON_SETS, DAEMON_SET)
        self.kube.put(DAEMON_SETS, live | {"status": {"observedGeneration": live["metadata"]["generation"]}})
        self.kube.put(PODS, pod("before", status=container(running={"startedAt": CREATED})))
        await self.report()

    async def report(self, drained: bool = False, held: bool = False, places: int | None = None) -> None:
        """`places`: how many are used, of a share with a queue."""
        node = self.kube.live(GPU_NODES, "n1")
        limits = {"threads": 100, "memoryMib": 16384}
        daemon = {
            "uuid": "GPU-1",
            "share": "a",
            "ready": True,
            "desiredLimits": limits,
            "currentLimits": limits,
            "serverPid": 7,
        }
        holders = [{"uuid": "GPU-1", "share": "a", "slots": [0], "pods": ["ml/x"]}] if held else []
        status = {"daemons": [daemon | {"drained": drained}], "holders": holders}
        queued = {"uuid": "GPU-1", "share": "a", "limit": 4, "used": places or 0, "waiting": 1}
        status |= {"places": [queued] if places is not None else []}
        status |= {"observedGeneration": node["metadata"]["generation"]}
        self.kube.put(GPU_NODES, node | {"status": node["status"] | status})
        await self.again()

    async def again(self) -> float | None:
        await relist(self.kube, self.reconciler)
        return await self.reconciler.once()

    def condition(self) -> tuple[str, str]:
        conditions = self.kube.live(GPU_SHARES, "a")["status"]["conditions"]
        (current,) = [item for item in conditions if item["type"] == "DaemonsCurrent"]
        return current["status"], current["reason"]

    def assignment(self) -> dict[str, Any]:
        (item,) = self.kube.live(GPU_NODES, "n1")["spec"]["assignments"]
        return item  # type: ignore[no-any-return]


@pytest.fixture
def rolling(kube: FakeKube, settings: OperatorSettings) -> Rolling:
    return Rolling(kube, settings)


async def test_an_outdated_pod_is_replaced_step_by_step_once_nobody_holds_a_slot(rolling: Rolling) -> None:
    await rolling.begin()
    await rolling.report(held=True)
    assert rolling.condition() == ("False", "WaitingForClients")
    assert "paused" not in rolling.assignment()
    await rolling.report()
    assert rolling.assignment()["paused"]
    assert rolling.condition() == ("False", "RollingOut")
    assert not [write for write in rolling.kube.writes if "pods" in write]
    await rolling.report(drained=True)
    assert [write for write in rolling.kube.writes if "pods" in write] == ["delete pods/mps-x"]
    await rolling.again()
    assert "paused" not in rolling.assignment()
    assert rolling.condition() == ("True", "DaemonsCurrent")
    reasons = [event["reason"] for event in rolling.kube.events]
    assert [reason for reason in reasons if reason in ("WaitingForClients", "RollingOut", "DaemonReplaced")]
    assert reasons.count("DaemonReplaced") == 1


async def test_a_container_that_only_waits_for_a_place_holds_up_no_rollout(rolling: Rolling) -> None:
    share = rolling.kube.live(GPU_SHARES, "a")
    queue = {"clients": share["spec"]["clients"] | {"queue": {"slots": 8}}}
    rolling.kube.put(GPU_SHARES, share | {"spec": share["spec"] | queue})
    await rolling.begin()
    await rolling.report(held=True, places=1)
    assert rolling.condition() == ("False", "WaitingForClients")
    assert rolling.kube.live(GPU_SHARES, "a")["status"]["places"] == {"total": 4, "used": 1, "waiting": 1}
    await rolling.report(held=True, places=0)
    assert rolling.assignment()["paused"]
    await rolling.report(held=True, places=0, drained=True)
    assert [write for write in rolling.kube.writes if "pods" in write] == ["delete pods/mps-x"]


async def test_a_pod_stays_while_a_write_to_its_node_is_unanswered(rolling: Rolling) -> None:
    await rolling.begin()
    await rolling.report()
    await relist(rolling.kube, rolling.reconciler)
    node = rolling.kube.live(GPU_NODES, "n1")
    (served,) = node["status"]["daemons"]
    drained = {"daemons": [served | {"drained": True}], "observedGeneration": node["metadata"]["generation"]}
    rolling.kube.put(GPU_NODES, node | {"status": node["status"] | drained})
    await relist(rolling.kube, rolling.reconciler)
    cache = rolling.reconciler.cache
    snapshot = cache.snapshot(rolling.now)
    decided = plan(snapshot)
    assert [pod.name for pod in decided.replaced] == ["mps-x"]

    def stages(*unanswered: Write) -> list[WriteStage]:
        text = format_timestamp(rolling.now)
        return [write.stage for write in differences(decided, snapshot, cache, rolling.settings, text, {}, unanswered)]

    assert WriteStage.REPLACE in stages()
    assert WriteStage.REPLACE not in stages(Write(WriteStage.ASSIGN, "merge", GPU_NODES, "n1", {}))
    assert WriteStage.REPLACE in stages(Write(WriteStage.ASSIGN, "merge", GPU_NODES, "n2", {}))


async def test_maxwait_counts_on_through_a_restart_of_the_operator(rolling: Rolling) -> None:
    share = rolling.kube.live(GPU_SHARES, "a")
    rolling.kube.put(GPU_SHARES, share | {"spec": share["spec"] | {"maxWait": "1h"}})
    await rolling.begin()
    await rolling.report(held=True)
    since = rolling.assignment()["waitingSince"]
    rolling.now += timedelta(minutes=59)
    rolling.reconciler = Reconciler(
        rolling.kube, rolling.settings, OperatorMeters(CollectorRegistry()), lambda: rolling.now
    )
    again = await rolling.again()
    assert rolling.assignment() == {"uuid": "GPU-1", "share": "a", "waitingSince": since}
    assert again == pytest.approx(60)
    rolling.now += timedelta(minutes=1)
    await rolling.again()
    assert rolling.assignment()["terminateClients"]
    assert "MaxWaitExpired" in [event["reason"] for event in rolling.kube.events]
