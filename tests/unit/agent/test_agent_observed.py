"""What the agent makes of clients above their grants: readings, findings, events, ends."""

from typing import Any

import pytest

from gpushare.agent.aio.blocking import HungError
from gpushare.agent.usage import usage as watch
from gpushare.api.conditions import EventReason
from gpushare.kube.client import GPU_SHARES, PODS
from tests.unit.agent.agent_world import SHARE, World
from tests.unit.agent.observed_pods import container, container_id, pod

TENANT = pod(1, container(), with_status=False)
STRANDED = pod(1, name="pod", namespace="ns")
"""The pod that the kubelet here says holds its slots."""


def findings(world: World) -> list[Any]:
    found: list[Any] = world.status().get("findings", [])
    return found


def within_grants(world: World) -> Any:
    return next((it for it in world.status().get("conditions", []) if it["type"] == "WithinGrants"), {})


async def serve(world: World, memory_mib: int) -> None:
    await world.serving()
    world.kube.put(PODS, TENANT)
    world.client(4711, memory_mib, TENANT)


async def test_a_client_within_its_grant_is_read_and_is_no_finding(world: World) -> None:
    await serve(world, 4000)
    await world.until(lambda: world.state.observed.get("GPU-0") and world.state.observed["GPU-0"].usages)
    (usage,) = world.state.observed["GPU-0"].usages
    assert (usage.pod, usage.container, usage.memory_mib) == ("pod-1", "app", 4000)
    await world.until(lambda: within_grants(world).get("status") == "True")
    assert findings(world) == []


async def test_one_above_it_is_told_in_the_status_and_at_the_pod_and_nobody_is_ended(world: World) -> None:
    await serve(world, 9000)
    await world.until(lambda: findings(world))
    (finding,) = findings(world)
    assert (finding["pod"], finding["granted"], finding["observed"]) == ("pod-1", 8192, 9000)
    condition = within_grants(world)
    assert (condition["status"], condition["reason"]) == ("False", "MemoryAboveGrant")
    assert "uses 9000 MiB" in condition["message"]
    assert "its grant is 8192 MiB" in condition["message"]
    assert {news.reason for news in world.teller.told} == {EventReason.MEMORY_ABOVE_GRANT}
    assert world.daemons.asked == []


async def test_a_finding_that_stands_costs_no_write(world: World) -> None:
    await serve(world, 9000)
    await world.until(lambda: findings(world))
    before = world.kube.status_writes
    for more in range(5):
        world.client(4711, 9000 + 500 * more, TENANT)
        seen = len(world.teller.told)
        await world.until(lambda seen=seen: len(world.teller.told) > seen)
    assert world.kube.status_writes == before


async def test_a_finding_goes_when_its_process_has_ended(world: World) -> None:
    await serve(world, 9000)
    await world.until(lambda: findings(world))
    world.nvml.clients.clear()
    await world.until(lambda: not findings(world) and within_grants(world)["status"] == "True")


async def test_terminate_ends_it_once_however_often_the_agent_is_restarted(world: World) -> None:
    world.kube.put(GPU_SHARES, {**SHARE, "spec": {**SHARE["spec"], "enforcement": "Terminate"}})
    await serve(world, 9000)
    await world.until(lambda: findings(world) and findings(world)[0]["ended"])
    told_before = findings(world)
    await world.stop()
    world.start()
    seen = len(world.teller.told)
    await world.until(lambda: len(world.teller.told) >= seen + 3)
    assert world.daemons.asked == [4711]
    assert findings(world) == told_before
    assert [news.reason for news in world.teller.told].count(EventReason.CLIENT_TERMINATED) == 1


async def test_a_container_started_without_its_mounts_is_told_at_its_pod_and_nobody_is_ended(world: World) -> None:
    world.kube.put(GPU_SHARES, {**SHARE, "spec": {**SHARE["spec"], "enforcement": "Terminate"}})
    await world.serving()
    world.kube.put(PODS, STRANDED)
    world.kubelet.holders = {("gpushare.dev/a", "GPU-0::1")}
    world.process(4711, STRANDED["metadata"]["uid"], container_id(10))
    (world.proc / "4711" / "mountinfo").write_text("22 1 0:20 / / rw - overlay overlay rw\n")
    await world.until(lambda: findings(world), 15)
    (finding,) = findings(world)
    assert (finding["reason"], finding["pod"], finding["container"], finding["pid"]) == (
        "EditsNotApplied", "pod", "app", 4711,
    )  # fmt: skip
    assert (within_grants(world)["status"], within_grants(world)["reason"]) == ("False", "EditsNotApplied")
    assert {(news.reason, news.regarding["name"]) for news in world.teller.told} == {
        (EventReason.EDITS_NOT_APPLIED, "pod")
    }
    assert world.daemons.asked == []
    world.kube.put(PODS, {**STRANDED, "status": {}})
    await world.until(lambda: not findings(world) and within_grants(world)["status"] == "True", 20)


async def test_a_proc_that_hangs_is_no_reading_and_no_end_of_the_agent(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(*_: Any) -> None:
        raise HungError("processes on GPUs: no answer within 5 s")

    monkeypatch.setattr(watch.UsageReader, "read", hang)
    await serve(world, 9000)
    await world.until(lambda: within_grants(world).get("status") == "True")
    assert findings(world) == []
