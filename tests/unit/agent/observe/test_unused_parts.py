"""A container with a slot is an event when it starts, and a line in the status while it does nothing."""

from datetime import UTC, datetime, timedelta
from typing import Any

from gpushare.api.conditions import EventReason
from gpushare.api.timestamps import format_timestamp
from gpushare.kube.client import GPU_NODES, PODS
from tests.unit.agent.fake_node import FakeNode
from tests.unit.agent.observed_pods import pod


def holder(age: timedelta) -> Any:
    """The pod that the kubelet here says holds its slots; its container started so long ago."""
    made = pod(1, name="pod", namespace="ns")
    started = format_timestamp(datetime.now(UTC) - age)
    made["status"]["containerStatuses"][0]["state"] = {"running": {"startedAt": started}}
    return made


async def test_a_restarted_agent_keeps_an_unused_part_without_a_write(node: FakeNode) -> None:
    await node.serving()
    held = holder(timedelta(hours=2))
    node.kube.put(PODS, held)
    node.kubelet.holders = {("gpushare.dev/a", "GPU-0::1")}
    await node.until(lambda: node.status().get("holders"))
    await node.stop()
    published = {
        "uuid": "GPU-0",
        "share": "a",
        "namespace": "ns",
        "pod": "pod",
        "container": "app",
        "heldSince": held["status"]["containerStatuses"][0]["state"]["running"]["startedAt"],
        "unusedSince": format_timestamp(datetime.now(UTC) - timedelta(hours=1)),
    }
    live = node.kube.live(GPU_NODES, "n")
    node.kube.put(GPU_NODES, {**live, "status": {**live["status"], "unused": [published]}})
    node.start()
    await node.until(lambda: node.running.observer.unused is not None and node.running.observer.unused.longest_first)
    await node.ticks(3)
    assert node.status()["unused"] == [published]
    node.client(4711, 100, held)
    await node.until(lambda: not node.status()["unused"])
    assert node.recorder.events == [], "it started long ago"


async def test_a_container_that_starts_is_an_event_of_its_pod(node: FakeNode) -> None:
    await node.serving()
    node.kube.put(PODS, holder(timedelta(0)))
    node.kubelet.holders = {("gpushare.dev/a", "GPU-0::1")}
    await node.until(lambda: node.recorder.events)
    [event] = node.recorder.events
    assert (event.reason, event.regarding["name"]) == (EventReason.GPU_PART_GRANTED, "pod")
    assert "on GPU GPU-0, by GpuShare a" in event.note
