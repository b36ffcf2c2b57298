"""What the agent makes of clients that borrow memory: status, condition, events, ends; and of who waits to get in."""

from typing import Any

from gpushare.api.conditions import EventReason
from gpushare.grant.model import Grant
from gpushare.kube.client import GPU_SHARES, PODS
from gpushare.nvml.types import GpuProcess
from tests.unit.agent.fake_node import SHARE, FakeNode
from tests.unit.agent.observed_pods import container, pod

GRANT = Grant("a", 25, 8192, 1, burst_mib=16384)
BORROWER = pod(1, container(grant=GRANT), with_status=False)
OTHER = pod(2, container(grant=GRANT), with_status=False)
WAITING = pod(3, container(grant=GRANT), name="pod", namespace="ns")
"""The pod that the kubelet here says holds its slots."""


def lending(**limits: Any) -> Any:
    memory = {"default": "8Gi", "limits": {"max": "24Gi", "overcommitPercent": 200, **limits}}
    return {**SHARE, "spec": {"clients": {**SHARE["spec"]["clients"], "memory": memory}}}


def borrowers(node: FakeNode) -> list[Any]:
    listed: list[Any] = node.status().get("borrowers", [])
    return listed


def pressure(node: FakeNode) -> Any:
    return next((item for item in node.status().get("conditions", []) if item["type"] == "MemoryPressure"), {})


async def serve(node: FakeNode, free: int, **limits: Any) -> None:
    """The borrower uses 20,000 MiB and the other one 2,192 of its 8,192."""
    node.kube.put(GPU_SHARES, lending(**limits))
    await node.serving()
    node.nvml.free["GPU-0"] = free
    for tenant, pid in ((BORROWER, 4711), (OTHER, 4712)):
        node.kube.put(PODS, tenant)
        node.process(pid, tenant["metadata"]["uid"], f"{pid:064x}")
    node.nvml.clients["GPU-0"] = [GpuProcess(4711, 20_000), GpuProcess(4712, 2192)]


async def test_who_borrows_is_in_the_status_and_is_no_finding(node: FakeNode) -> None:
    await serve(node, free=50_000)
    await node.until(lambda: borrowers(node))
    (borrower,) = borrowers(node)
    assert (borrower["pod"], borrower["reservedMib"], borrower["limitMib"], borrower["observedMib"]) == (
        "pod-1",
        8192,
        24576,
        20_000,
    )
    await node.until(lambda: pressure(node).get("status") == "False")
    assert not node.status().get("findings")
    assert node.recorder.events == []


async def test_a_borrower_goes_on_a_gpu_that_is_short_where_the_share_says_so(node: FakeNode) -> None:
    await serve(node, free=1000, whenShort="Terminate", gracePeriod="1s")
    await node.until(lambda: node.daemons.asked)
    assert node.daemons.asked == [4711]
    both = [EventReason.MEMORY_SHORT, EventReason.CLIENT_TERMINATED]
    await node.until(lambda: [event.reason for event in node.recorder.events] == both)
    await node.until(lambda: pressure(node).get("reason") == "MemoryShort")
    node.nvml.clients["GPU-0"], node.nvml.free["GPU-0"] = [GpuProcess(4712, 8192)], 80_000
    await node.until(lambda: not borrowers(node) and pressure(node).get("status") == "False")
    assert node.daemons.asked == [4711], "nobody else"


async def test_with_the_default_policy_nobody_is_ended(node: FakeNode) -> None:
    await serve(node, free=1000, gracePeriod="0s")
    await node.until(lambda: pressure(node).get("status") == "True")
    await node.until(lambda: [event.reason for event in node.recorder.events] == [EventReason.MEMORY_SHORT])
    taken = node.observed["GPU-0"].taken_at
    await node.until(lambda: node.observed["GPU-0"].taken_at > taken + 2)
    assert node.daemons.asked == []


async def test_a_container_that_waits_needs_a_context(node: FakeNode) -> None:
    node.kube.put(GPU_SHARES, lending())
    await node.serving()
    node.nvml.free["GPU-0"] = 50
    node.kube.put(PODS, WAITING)
    node.kubelet.holders = {("gpushare.dev/a", "GPU-0::1")}
    node.nvml.clients["GPU-0"] = [GpuProcess(4711, 20_000)]
    node.kube.put(PODS, BORROWER)
    node.process(4711, BORROWER["metadata"]["uid"], "ab" * 32)
    await node.until(
        lambda: (shortage := node.running.observer.shortages.latest.get("GPU-0")) and shortage.reserved_mib == 218
    )
    assert node.running.observer.shortages.latest["GPU-0"].mib == 168, "a context at 25 percent of the threads"
    await node.until(lambda: any(item.get("reservedMib") for item in node.status().get("holders", [])))
    (holder,) = node.status()["holders"]
    assert (holder["reservedMib"], holder["limitsMib"]) == (8192, 24576)


async def test_a_share_that_lends_nothing_has_no_condition_and_no_sums(node: FakeNode) -> None:
    await node.serving()
    node.kube.put(PODS, BORROWER)
    node.client(4711, 4000, BORROWER)
    await node.until(lambda: node.observed.get("GPU-0") and node.observed["GPU-0"].usages)
    await node.until(lambda: node.status().get("conditions"))
    assert pressure(node) == {}
    assert node.running.observer.reserved == {}
