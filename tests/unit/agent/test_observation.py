"""What the agent makes of clients above their grants: readings, findings, events, ends."""

import asyncio
import json
import os
from typing import Any

import pytest

from gpushare.api.conditions import EventReason
from gpushare.kube.client import GPU_SHARES, PODS
from gpushare.nvml.types import GpuProcess
from tests.unit.agent.fake_node import SHARE, FakeNode
from tests.unit.agent.observed_pods import container, container_id, pod

TENANT = pod(1, container(), with_status=False)
STRANDED = pod(1, name="pod", namespace="ns")
"""The pod that the kubelet here says holds its slots."""


def findings(node: FakeNode) -> list[Any]:
    listed: list[Any] = node.status().get("findings", [])
    return listed


def within_grants(node: FakeNode) -> Any:
    return next((item for item in node.status().get("conditions", []) if item["type"] == "WithinGrants"), {})


async def serve(node: FakeNode, memory_mib: int) -> None:
    await node.serving()
    node.kube.put(PODS, TENANT)
    node.client(4711, memory_mib, TENANT)


async def test_a_client_within_its_grant_is_read_and_is_no_finding(node: FakeNode) -> None:
    await serve(node, 4000)
    await node.until(lambda: node.observed.get("GPU-0") and node.observed["GPU-0"].usages)
    (usage,) = node.observed["GPU-0"].usages
    assert (usage.pod, usage.container, usage.memory_mib) == ("pod-1", "app", 4000)
    await node.until(lambda: within_grants(node).get("status") == "True")
    assert findings(node) == []


async def test_a_client_above_its_grant_is_a_finding_and_is_not_ended(node: FakeNode) -> None:
    await serve(node, 9000)
    await node.until(lambda: findings(node))
    (finding,) = findings(node)
    assert (finding["pod"], finding["granted"], finding["observed"]) == ("pod-1", 8192, 9000)
    condition = within_grants(node)
    assert (condition["status"], condition["reason"]) == ("False", "MemoryAboveGrant")
    assert "uses 9000 MiB" in condition["message"]
    assert "its grant is 8192 MiB" in condition["message"]
    assert {event.reason for event in node.recorder.events} == {EventReason.MEMORY_ABOVE_GRANT}
    assert node.daemons.asked == []


async def test_a_finding_that_stands_costs_no_write(node: FakeNode) -> None:
    await serve(node, 9000)
    await node.until(lambda: findings(node))
    before = node.kube.status_writes
    for more in range(5):
        node.client(4711, 9000 + 500 * more, TENANT)
        seen = len(node.recorder.events)
        await node.until(lambda seen=seen: len(node.recorder.events) > seen)
    assert node.kube.status_writes == before


async def test_a_finding_goes_when_its_process_has_ended(node: FakeNode) -> None:
    await serve(node, 9000)
    await node.until(lambda: findings(node))
    node.nvml.clients.clear()
    await node.until(lambda: not findings(node) and within_grants(node)["status"] == "True")


async def test_terminate_ends_it_once_however_often_the_agent_is_restarted(node: FakeNode) -> None:
    node.kube.put(GPU_SHARES, {**SHARE, "spec": {**SHARE["spec"], "enforcement": "Terminate"}})
    await serve(node, 9000)
    await node.until(lambda: findings(node) and findings(node)[0]["ended"])
    found_before = findings(node)
    await node.stop()
    node.start()
    seen = len(node.recorder.events)
    await node.until(lambda: len(node.recorder.events) >= seen + 3)
    assert node.daemons.asked == [4711]
    assert findings(node) == found_before
    assert [event.reason for event in node.recorder.events].count(EventReason.CLIENT_TERMINATED) == 1


async def test_a_container_without_its_mounts_is_a_finding_and_is_not_ended(node: FakeNode) -> None:
    node.kube.put(GPU_SHARES, {**SHARE, "spec": {**SHARE["spec"], "enforcement": "Terminate"}})
    await node.serving()
    node.kube.put(PODS, STRANDED)
    node.kubelet.holders = {("gpushare.dev/a", "GPU-0::1")}
    node.process(4711, STRANDED["metadata"]["uid"], container_id(10))
    (node.proc / "4711" / "mountinfo").write_text(
        "22 1 0:20 / / rw - overlay overlay rw\n23 22 0:21 / /proc rw - proc proc rw\n"
    )
    (node.proc / "4711" / "ns").symlink_to("/proc/self/ns")
    await node.until(lambda: findings(node), 15)
    (finding,) = findings(node)
    assert (finding["reason"], finding["pod"], finding["container"], finding["pid"]) == (
        "CdiEditsMissing", "pod", "app", 4711,
    )  # fmt: skip
    assert (within_grants(node)["status"], within_grants(node)["reason"]) == ("False", "CdiEditsMissing")
    assert {(event.reason, event.regarding["name"]) for event in node.recorder.events} == {
        (EventReason.CDI_EDITS_MISSING, "pod")
    }
    assert node.daemons.asked == []
    node.kube.put(PODS, {**STRANDED, "status": {}})
    await node.until(lambda: not findings(node) and within_grants(node)["status"] == "True", 20)


async def test_a_proc_that_hangs_is_no_reading_and_no_end_of_the_agent(
    node: FakeNode, caplog: pytest.LogCaptureFixture
) -> None:
    directory = node.proc / "4711"
    directory.mkdir()
    os.mkfifo(directory / "stat")  # opening it to read waits for a writer, as a read of a stuck process's file does
    try:
        await node.serving()
        node.nvml.clients["GPU-0"] = [GpuProcess(4711, 9000)]
        await node.until(lambda: "the processes on the GPUs are not known" in caplog.text, 30)
        await node.until(lambda: within_grants(node).get("status") == "True")
        await node.ticks(3)
        assert findings(node) == []
    finally:
        os.close(os.open(directory / "stat", os.O_RDWR))  # the reader goes on, and its thread ends


async def test_of_a_pod_of_the_node_no_more_is_kept_than_is_read(node: FakeNode) -> None:
    """Whoever may create pods can name the node in any number of them, of any size."""
    given = pod(1, {**container(), "ports": [{"containerPort": 1}] * 1000}, annotations={"a": "x" * 100_000})
    node.kube.put(PODS, given)
    await node.until(lambda: node.readings.cache.pods.objects)
    assert len(json.dumps(list(node.readings.cache.pods.objects.values()))) < 3_000


async def test_a_shares_status_gives_the_agent_no_turn(node: FakeNode) -> None:
    """Every agent follows every share: none of a thousand works because a client came or went on another node."""
    await node.until(lambda: "a" in node.readings.cache.shares)
    known = node.readings.cache.shares
    node.kube.put(GPU_SHARES, {**SHARE, "status": {"slots": {"total": 4, "used": 3}}})
    node.kube.put(PODS, TENANT)
    await node.until(lambda: node.readings.cache.pods.objects)
    await node.ticks(3)
    assert node.readings.cache.shares is known
    clients = {**SHARE["spec"]["clients"], "perGpu": 3}
    node.kube.put(GPU_SHARES, {**SHARE, "spec": {"clients": clients}})
    await node.until(lambda: node.readings.cache.shares is not known)


async def test_a_restarted_agent_guards_departures_before_its_first_reading(node: FakeNode) -> None:
    await node.serving()
    leaving = pod(1, container(), with_status=False)
    node.client(4711, 100, leaving)
    (node.proc / "4711" / "status").write_text("PPid:\t0\nSigCgt:\t0000000000000000\n")
    await node.stop()
    deleted = {"deletionTimestamp": "2036-01-01T00:00:00Z", "deletionGracePeriodSeconds": 30, "finalizers": ["x/y"]}
    leaving["metadata"] |= deleted
    node.kube.put(PODS, leaving)
    never = asyncio.Event()
    node.kubelet.held = never.wait  # type: ignore[method-assign]
    node.start()
    await node.until(lambda: node.daemons.asked == [4711], seconds=3.0)
