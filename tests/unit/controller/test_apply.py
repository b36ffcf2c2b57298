"""Which writes wait for which, and what becomes of those that a newer plan no longer wants."""

import asyncio
import gc
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from gpushare.controller.apply import AT_ONCE, REACHES_A_ROUND, Applier
from gpushare.controller.cache.fleet_cache import FleetCache
from gpushare.controller.metrics import OperatorMeters
from gpushare.controller.writes import Write, WriteStage
from gpushare.kube.client import CLAIM_TEMPLATES, DAEMON_SETS, GPU_NODES, GPU_SHARES, NODES
from tests.unit.clock import Clock
from tests.unit.fake_kube import FORBIDDEN, FakeKube

NODE_COUNT = 3 * AT_ONCE


@pytest.fixture
def fleet(kube: FakeKube) -> FakeKube:
    for number in range(NODE_COUNT):
        kube.put(NODES, {"metadata": {"name": f"n{number}"}})
        kube.put(GPU_NODES, {"metadata": {"name": f"n{number}"}, "spec": {}})
    return kube


@pytest.fixture
def drained() -> list[bool]:
    return []


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def applier(fleet: FakeKube, clock: Clock, drained: list[bool]) -> Applier:
    cache = FleetCache(lambda: None)
    meters = OperatorMeters(CollectorRegistry())
    return Applier(fleet, cache, "operator-0", clock, meters, lambda: drained.append(True))  # type: ignore[arg-type]


def label(node: str, value: str = "true", share: str = "a") -> Write:
    body = {"metadata": {"labels": {"share": value}}}
    return Write(WriteStage.LABEL, "merge", NODES, node, body, shares=frozenset(share))


def assignment(node: str) -> Write:
    return Write(WriteStage.ASSIGN, "merge", GPU_NODES, node, {"spec": {"assignments": []}}, shares=frozenset("a"))


def of_share(stage: WriteStage, **fields: Any) -> Write:
    metadata = {"metadata": {"name": "a"}}
    values: dict[str, Any] = {"resource": GPU_SHARES, "name": "a", "body": metadata, "manager": f"m{stage}"} | fields
    return Write(stage, "apply", shares=frozenset("a"), **values)


def status() -> Write:
    return of_share(WriteStage.REPORT, body={"metadata": {"name": "a"}, "status": {"nodes": 1}}, subresource="status")


def whole_plan() -> list[Write]:
    names = [f"n{number}" for number in range(NODE_COUNT)]
    daemon_set = of_share(WriteStage.RUN, resource=DAEMON_SETS, name="mps-a", namespace="ns")
    return [
        of_share(WriteStage.HOLD),
        daemon_set,
        *map(label, names),
        *map(assignment, names),
        status(),
    ]


async def test_a_share_is_held_and_run_before_any_node_and_each_node_is_labelled_before_it_gets_gpus(
    fleet: FakeKube, applier: Applier
) -> None:
    applier.submit(whole_plan())
    await applier.idle()
    assert fleet.writes[:2] == ["apply gpushares/a", "apply daemonsets/mps-a"]
    for number in range(NODE_COUNT):
        assert fleet.writes.index(f"patch nodes/n{number}") < fleet.writes.index(f"patch gpunodes/n{number}")
    assert fleet.writes.index("patch gpunodes/n0") < fleet.writes.index(f"patch nodes/n{NODE_COUNT - 1}")
    assert fleet.writes[-1] == "apply gpushares/a/status"


def template(number: int) -> Write:
    return of_share(WriteStage.REACH, resource=CLAIM_TEMPLATES, name="small", namespace=f"n{number:03}")


async def test_thousands_of_templates_are_written_in_parts_and_refused_ones_keep_nobody_waiting(
    fleet: FakeKube, applier: Applier
) -> None:
    wanted = [template(number) for number in range(2 * REACHES_A_ROUND)]
    fleet.fail("apply resourceclaimtemplates/small", FORBIDDEN)
    applier.submit(wanted)
    await applier.idle()
    assert len(fleet.all(CLAIM_TEMPLATES)) == 0
    fleet.heal()
    applier.submit(wanted)
    await applier.idle()
    written = sorted(it["metadata"]["namespace"] for it in fleet.all(CLAIM_TEMPLATES))
    assert written == [write.namespace for write in wanted[REACHES_A_ROUND:]], "the first wait for their back-off"


async def test_a_newer_plan_does_not_overtake_the_finalizer_that_is_under_way(
    fleet: FakeKube, applier: Applier
) -> None:
    fleet.fail("apply gpushares/a")
    applier.submit(whole_plan())
    await fleet.until(lambda: fleet.writes)
    applier.submit(whole_plan())
    await asyncio.sleep(0.1)
    assert fleet.writes == ["apply gpushares/a"]
    await applier.close()


async def test_a_node_that_does_not_answer_holds_up_neither_other_nodes_nor_the_status(
    fleet: FakeKube, applier: Applier, clock: Clock, drained: list[bool]
) -> None:
    fleet.fail("patch nodes/n0")
    applier.submit(whole_plan())
    async with asyncio.timeout(30):
        while len(fleet.writes) < 2 + 2 * NODE_COUNT:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert "apply gpushares/a/status" in fleet.writes
    assert "patch gpunodes/n0" not in fleet.writes
    assert drained == []
    clock.now += 301
    assert applier.stalled_seconds > 300
    await applier.close()


async def test_a_newer_plan_replaces_what_has_not_begun(fleet: FakeKube, applier: Applier) -> None:
    for number in range(AT_ONCE):
        fleet.fail(f"patch nodes/n{number}")
    applier.submit([label(f"n{number}") for number in range(NODE_COUNT)])
    await fleet.until(lambda: len(fleet.writes) == AT_ONCE)
    applier.submit([label("n0"), label("n1", "false")])
    await asyncio.sleep(0.05)
    assert len(fleet.writes) == AT_ONCE, "the same write is not sent twice, nor two at once for one object"
    await applier.close()


async def test_a_share_of_one_node_does_not_wait_for_one_of_many(fleet: FakeKube, applier: Applier) -> None:
    names = [f"n{number}" for number in range(NODE_COUNT)]
    applier.submit([*map(label, names[:-1]), label(names[-1], share="b")])
    await applier.idle()
    assert fleet.writes.index(f"patch nodes/{names[-1]}") < AT_ONCE + 2
    assert len(fleet.writes) == NODE_COUNT


async def test_of_a_plan_for_many_nodes_only_those_that_have_their_turn_are_tasks(
    fleet: FakeKube, applier: Applier
) -> None:
    fleet.fail()
    before = len(asyncio.all_tasks())
    for turn in range(20):
        applier.submit([label(f"n{number}", str(turn)) for number in range(NODE_COUNT)])
        await asyncio.sleep(0.01)
    assert len(asyncio.all_tasks()) - before <= AT_ONCE + 1
    await applier.close()


async def test_what_earlier_plans_wanted_is_not_kept(fleet: FakeKube, applier: Applier) -> None:
    def alive() -> int:
        gc.collect()
        return sum(isinstance(it, Write) for it in gc.get_objects())

    fleet.fail()
    others = alive()
    for turn in range(20):
        applier.submit([*(label(f"n{number}", str(turn)) for number in range(NODE_COUNT)), status()])
        await asyncio.sleep(0.01)
    assert alive() - others < 3 * NODE_COUNT, "of the latest plan, of the one before, and what is under way"
    await applier.close()


async def test_a_newer_write_to_an_object_follows_the_one_under_way(fleet: FakeKube, applier: Applier) -> None:
    applier.submit([label("n0")])
    await fleet.until(lambda: fleet.writes)
    applier.submit([label("n0", "false")])
    await applier.idle()
    assert fleet.writes == ["patch nodes/n0", "patch nodes/n0"]
    assert fleet.live(NODES, "n0")["metadata"]["labels"] == {"share": "false"}


async def test_a_share_is_not_released_while_one_of_its_writes_fails(fleet: FakeKube, applier: Applier) -> None:
    fleet.fail("patch nodes/n0", FORBIDDEN)
    applier.submit([label("n0"), of_share(WriteStage.RELEASE)])
    await applier.idle()
    assert fleet.writes == ["patch nodes/n0"]
    assert applier.retry_seconds() is not None


async def test_an_error_of_ours_ends_the_operator(fleet: FakeKube, applier: Applier, drained: list[bool]) -> None:
    fleet.fail("patch nodes/n0", LookupError("a bug"))
    applier.submit([label("n0")])
    await fleet.until(lambda: drained)
    with pytest.raises(LookupError):
        applier.submit([])


async def test_a_status_alone_leads_to_no_other_plan(applier: Applier, drained: list[bool]) -> None:
    """The next plan would find other counts and write them, and so on."""
    applier.submit([status()])
    await applier.idle()
    assert drained == []
    applier.submit([label("n0"), status()])
    await applier.idle()
    assert drained == [True]
