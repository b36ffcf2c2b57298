"""What the agent makes of broker.json: readings at once, events, metrics."""

import time
from typing import Any

from prometheus_client import CollectorRegistry

from gpushare.agent.status.meters import NodeMeters
from gpushare.api.conditions import EventReason
from gpushare.kube.client import PODS
from gpushare.mps.clock import boot_clock
from gpushare.mps.files import write_model
from gpushare.mps.layout import gpu_dir
from gpushare.mps.wire import Arrival, AttachRefusal, BrokerState, RefusedAttach
from tests.unit.agent.fake_node import FakeNode
from tests.unit.agent.observed_pods import container_id, pod

TENANT = pod(1, with_status=False)


def write_broker(node: FakeNode, **fields: Any) -> None:
    broker = BrokerState(uuid="GPU-0", heartbeat=boot_clock(), listening=True, **fields)
    write_model(gpu_dir(node.root, "GPU-0").broker_state, broker)


async def test_an_attach_is_observed_within_half_a_second(node: FakeNode) -> None:
    await node.stop()
    node.seldom = 60.0
    node.start()
    await node.serving()
    node.kube.put(PODS, TENANT)
    await node.until(lambda: "GPU-0" in node.observed)
    await node.ticks(5)
    node.client(4711, 4000, TENANT)
    await node.ticks(3)
    assert node.observed["GPU-0"].usages == (), "a reading was taken without an attach"
    began = time.monotonic()
    write_broker(node, attached=1, arrivals=[Arrival(pid=4711, pod_uid=TENANT["metadata"]["uid"], at=boot_clock())])
    await node.until(lambda: node.observed["GPU-0"].usages)
    assert time.monotonic() - began < 2.0, "half a second on a machine that has nothing else to do"


async def test_who_attaches_without_end_causes_one_early_reading_in_a_second(node: FakeNode) -> None:
    await node.stop()
    node.seldom = 60.0
    node.start()
    await node.serving()
    await node.ticks(5)
    readings, began = set(), time.monotonic()
    attached = 0
    while time.monotonic() - began < 2.5 or attached < 20:
        attached += 1
        write_broker(node, attached=attached)
        await node.ticks(1)
        readings.add(node.readings.inventory.views["GPU-0"].seen_at)
    assert 1 < len(readings) <= time.monotonic() - began + 2


async def test_a_refused_process_is_an_event_of_its_pod_and_counted(node: FakeNode) -> None:
    await node.serving()
    node.kube.put(PODS, TENANT)
    await node.until(lambda: node.readings.cache.pods_by_uid())
    refused = AttachRefusal(
        reason=RefusedAttach.NO_GRANT,
        pod_uid=TENANT["metadata"]["uid"],
        container="plain",
        container_id=container_id(11),
        message="its container plain holds no part of this GPU",
        count=2,
        at=boot_clock(),
    )
    write_broker(node, refused=2, refusals=[refused])
    await node.until(lambda: node.recorder.events)
    [event] = node.recorder.events
    assert (event.reason, event.regarding["name"]) == (EventReason.ATTACH_REFUSED, "pod-1")
    labels = {"share": "a", "reason": "NoGrant"}
    assert node.registry.get_sample_value("gpushare_attach_refused_total", labels) == 2


async def test_a_pod_that_has_not_attached_is_no_suspect_of_a_fault(node: FakeNode) -> None:
    await node.serving()
    node.kube.put(PODS, pod(2, with_status=False))
    other = Arrival(pid=6, pod_uid=pod(2)["metadata"]["uid"], at=boot_clock())
    write_broker(node, attached=1, arrivals=[other])
    await node.until(lambda: node.running.incidents.gpu_health()[0].arrived)
    await node.read()
    node.kube.put(PODS, pod(1, with_status=False, name="pod", namespace="ns"))
    node.kubelet.holders = {("gpushare.dev/a", "GPU-0::1")}
    await node.until(lambda: node.running.held("a", "GPU-0"))
    await node.read()
    [health] = node.running.incidents.gpu_health()
    assert health.clients == ()
    attached = Arrival(pid=7, pod_uid=TENANT["metadata"]["uid"], container="app", at=boot_clock())
    write_broker(node, attached=2, arrivals=[other, attached])
    await node.until(lambda: len(node.running.incidents.gpu_health()[0].arrived) == 2)
    [health] = node.running.incidents.gpu_health()
    assert health.clients == ("ns/pod",)
    assert (health.arrived[0].pod, health.arrived[0].container, health.arrived[0].pid) == ("ns/pod", "app", 7)


def test_refusals_are_counted_by_share_and_reason() -> None:
    registry = CollectorRegistry()
    NodeMeters(registry).count_refused("a", RefusedAttach.STALLED, 3)
    labels = {"share": "a", "reason": "AttachStalled"}
    assert registry.get_sample_value("gpushare_attach_refused_total", labels) == 3
