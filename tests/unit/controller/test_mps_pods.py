"""What is read of MPS pods and their DaemonSets, and what the operator does with them."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from gpushare.controller.daemonset import mps_pod, template_of
from gpushare.controller.metrics import OperatorMeters
from gpushare.controller.reconcile import Reconciler
from gpushare.controller.settings import OperatorSettings
from gpushare.fleet import Template
from gpushare.kube.client import DAEMON_SETS, GPU_NODES, GPU_SHARES, PODS
from tests.unit.controller.listing import relist

CREATED = "2026-01-01T00:00:00Z"
DAEMON_SET = "gpushare-mps-a-uid-a"


def pod(template: str = "t1", *, status: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": "mps-x",
            "uid": "u1",
            "labels": {"gpushare.dev/share": "a", "app.kubernetes.io/component": "mps"},
            "annotations": {"gpushare.dev/template": template},
            "creationTimestamp": CREATED,
            "ownerReferences": [{"kind": "DaemonSet", "name": DAEMON_SET, "controller": True}],
        },
        "spec": {"nodeName": "n1"} | spec,
        "status": status or {},
    }


def container(**state: Any) -> dict[str, Any]:
    return {"containerStatuses": [{"state": state}]}


def test_a_running_pod_counts_from_the_start_of_its_container() -> None:
    owner, read = mps_pod(pod(status=container(running={"startedAt": "2026-01-02T00:00:00Z"})))
    assert owner == DAEMON_SET
    assert read is not None
    assert (read.share, read.node, read.template, read.running) == ("a", "n1", "t1", True)
    assert read.since == datetime(2026, 1, 2, tzinfo=UTC)


UNSCHEDULABLE = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "Insufficient cpu"}]
TROUBLE: dict[str, tuple[dict[str, Any], str, bool]] = {
    "an image that cannot be pulled is stuck": (
        container(waiting={"reason": "ImagePullBackOff", "message": "not found"}), "ImagePullBackOff: not found", True),
    "the first failure to pull may pass": (container(waiting={"reason": "ErrImagePull"}), "ErrImagePull", False),
    "a container that is being made is in no trouble yet": (
        container(waiting={"reason": "ContainerCreating"}), "ContainerCreating", False),
    "a crash loop is stuck": (container(waiting={"reason": "CrashLoopBackOff"}), "CrashLoopBackOff", True),
    "the scheduler's words are told": (
        {"conditions": UNSCHEDULABLE}, "Unschedulable: Insufficient cpu", False),
    "nothing is known yet": ({}, "", False),
}  # fmt: skip


@pytest.mark.parametrize(("status", "words", "stuck"), TROUBLE.values(), ids=TROUBLE)
def test_a_pod_that_does_not_run_tells_why(status: dict[str, Any], words: str, stuck: bool) -> None:
    _, read = mps_pod(pod(status=status))
    assert read is not None
    assert (read.running, read.trouble, read.stuck) == (False, words, stuck)


def test_a_pod_that_the_scheduler_cannot_place_is_of_the_node_that_it_is_for() -> None:
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n7"]}]}]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    _, read = mps_pod(pod(nodeName="", affinity=affinity))
    assert read is not None
    assert read.node == "n7"


def test_a_template_counts_as_observed_once_the_controller_has_seen_its_generation() -> None:
    annotations = {"metadata": {"annotations": {"gpushare.dev/template": "t1"}}}
    live = {"metadata": {"generation": 2}, "spec": {"template": annotations}, "status": {"observedGeneration": 1}}
    assert template_of(live) == Template("t1", observed=False)
    assert template_of(live | {"status": {"observedGeneration": 2}}) == Template("t1", observed=True)
    assert template_of({"metadata": {}, "spec": {}}) is None


class Rolling:
    """The share of the fake cluster, served by a pod that is made from another template than its DaemonSet."""

    def __init__(self, kube: Any, settings: OperatorSettings) -> None:
        self.kube, self.settings = kube, settings
        self.now = datetime(2026, 3, 1, tzinfo=UTC)
        self.reconciler = Reconciler(kube, settings, OperatorMeters(CollectorRegistry()), lambda: self.now)

    async def begin(self) -> None:
        await self.again()
        live = self.kube.live(DAEMON_SETS, DAEMON_SET)
        self.kube.put(DAEMON_SETS, live | {"status": {"observedGeneration": live["metadata"]["generation"]}})
        self.kube.put(PODS, pod("before", status=container(running={"startedAt": CREATED})))
        await self.tell()

    async def tell(self, drained: bool = False, held: bool = False) -> None:
        node = self.kube.live(GPU_NODES, "n1")
        limits = {"threads": 100, "memoryMib": 16384, "priority": 0}
        daemon = {"uuid": "GPU-1", "share": "a", "ready": True, "wanted": limits, "inForce": limits, "serverPid": 7}
        holders = [{"uuid": "GPU-1", "share": "a", "slots": [0], "pods": ["ml/x"]}] if held else []
        status = {"daemons": [daemon | {"drained": drained}], "holders": holders}
        status |= {"observedGeneration": node["metadata"]["generation"]}
        self.kube.put(GPU_NODES, node | {"status": node["status"] | status})
        await self.again()

    async def again(self) -> float | None:
        await relist(self.kube, self.reconciler)
        return await self.reconciler.once()

    def condition(self) -> tuple[str, str]:
        conditions = self.kube.live(GPU_SHARES, "a")["status"]["conditions"]
        (found,) = [item for item in conditions if item["type"] == "DaemonsCurrent"]
        return found["status"], found["reason"]

    def assignment(self) -> dict[str, Any]:
        (item,) = self.kube.live(GPU_NODES, "n1")["spec"]["assignments"]
        return item  # type: ignore[no-any-return]


@pytest.fixture
def rolling(kube: Any, settings: OperatorSettings) -> Rolling:
    return Rolling(kube, settings)


async def test_an_outdated_pod_is_replaced_step_by_step_once_nobody_holds_a_slot(rolling: Rolling) -> None:
    await rolling.begin()
    await rolling.tell(held=True)
    assert rolling.condition() == ("False", "WaitingForClients")
    assert "paused" not in rolling.assignment()
    await rolling.tell()
    assert rolling.assignment()["paused"]
    assert rolling.condition() == ("False", "RollingOut")
    assert not [write for write in rolling.kube.writes if "pods" in write]
    await rolling.tell(drained=True)
    assert [write for write in rolling.kube.writes if "pods" in write] == ["delete pods/mps-x"]
    await rolling.again()
    assert "paused" not in rolling.assignment()
    assert rolling.condition() == ("True", "DaemonsCurrent")
    told = [event["reason"] for event in rolling.kube.events]
    assert [reason for reason in told if reason in ("WaitingForClients", "RollingOut", "DaemonReplaced")]
    assert told.count("DaemonReplaced") == 1


async def test_maxwait_counts_on_through_a_restart_of_the_operator(rolling: Rolling) -> None:
    share = rolling.kube.live(GPU_SHARES, "a")
    rolling.kube.put(GPU_SHARES, share | {"spec": share["spec"] | {"maxWait": "1h"}})
    await rolling.begin()
    await rolling.tell(held=True)
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
    assert rolling.assignment()["endClients"]
    assert "MaxWaitExpired" in [event["reason"] for event in rolling.kube.events]
