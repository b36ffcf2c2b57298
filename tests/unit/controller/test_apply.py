"""Which writes of a plan wait for which, and what becomes of those that are not answered, refused, or out of date."""

import asyncio
import gc
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from gpushare.controller.apply import (
    AT_ONCE,
    CONFLICT_BACKOFF,
    FIRST_BACKOFF,
    UNANSWERED_AT_MOST,
    UNANSWERED_OF_KIND,
    WRITE_SECONDS,
    Applier,
    in_turns,
    phases,
)
from gpushare.controller.cache.fleet_cache import FleetCache
from gpushare.controller.events import FleetEvents
from gpushare.controller.metrics import OperatorMeters
from gpushare.controller.writes import Write, WriteStage
from gpushare.kube.client import CLAIM_TEMPLATES, DAEMON_SETS, GPU_NODES, GPU_SHARES, NODES
from tests.unit.clock import Clock
from tests.unit.fake_kube import FORBIDDEN, FakeKube

NODE_COUNT = 2 * AT_ONCE
SECONDS = 0.5
"""The time for each phase."""


@pytest.fixture
def fleet(kube: FakeKube) -> FakeKube:
    for number in range(NODE_COUNT):
        kube.put(NODES, {"metadata": {"name": f"n{number}"}})
        kube.put(GPU_NODES, {"metadata": {"name": f"n{number}"}, "spec": {}})
    return kube


@pytest.fixture
def answered() -> asyncio.Event:
    return asyncio.Event()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def applier(fleet: FakeKube, clock: Clock, answered: asyncio.Event) -> Applier:
    return applier_of(fleet, clock, answered, WRITE_SECONDS)


def applier_of(fleet: FakeKube, clock: Clock, answered: asyncio.Event, write_seconds: float) -> Applier:
    cache, meters = FleetCache(lambda: None), OperatorMeters(CollectorRegistry())
    events = FleetEvents(fleet, cache, "operator-0", clock)  # type: ignore[arg-type]
    return Applier(fleet, cache, events, clock, meters, answered.set, write_seconds)  # type: ignore[arg-type]


def label(node: str, value: str = "true", share: str = "a", version: str = "") -> Write:
    body = {"metadata": {"labels": {"share": value}}}
    return Write(WriteStage.LABEL, "merge", NODES, node, body, version=version, shares=frozenset([share]))


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
    daemon_set = of_share(WriteStage.RUN, resource=DAEMON_SETS, name="z-mps", namespace="ns")
    return [
        of_share(WriteStage.HOLD),
        daemon_set,
        *map(label, names),
        *map(assignment, names),
        status(),
    ]


async def test_a_share_is_held_and_run_before_a_node_is_asked(fleet: FakeKube, applier: Applier) -> None:
    assert await applier.write(whole_plan(), SECONDS)
    assert fleet.writes[:2] == ["apply gpushares/a", "apply daemonsets/z-mps"]
    for number in range(NODE_COUNT):
        assert fleet.writes.index(f"patch nodes/n{number}") < fleet.writes.index(f"patch gpunodes/n{number}")
    assert fleet.writes.index("patch gpunodes/n0") < fleet.writes.index(f"patch nodes/n{NODE_COUNT - 1}")
    assert fleet.writes[-1] == "apply gpushares/a/status"


async def test_a_share_without_finalizer_gets_nothing(fleet: FakeKube, applier: Applier, clock: Clock) -> None:
    fleet.fail("apply gpushares/a", FORBIDDEN)
    for _ in range(2):  # the second time its finalizer waits for its back-off
        await applier.write([*whole_plan(), label("n0", share="b")], SECONDS)
        assert [sent for sent in fleet.writes if "nodes" in sent or "daemonsets" in sent] == ["patch nodes/n0"]
        fleet.writes.remove("patch nodes/n0")
    fleet.heal()
    clock.now += FIRST_BACKOFF
    await applier.write(whole_plan(), SECONDS)
    assert "patch gpunodes/n0" in fleet.writes


async def test_no_node_is_asked_for_pods_of_a_daemon_set_without_an_answer(
    fleet: FakeKube, applier: Applier, clock: Clock
) -> None:
    """Not even by the next pass; but once it was refused, the share goes on with what it has."""
    fleet.fail("apply daemonsets/z-mps")
    for _ in range(2):
        await applier.write([*whole_plan(), label("n0", share="b")], SECONDS)
        assert [sent for sent in fleet.writes if "nodes" in sent] == ["patch nodes/n0"]
        fleet.writes.remove("patch nodes/n0")
    await applier.close()
    fleet.heal()
    fleet.fail("apply daemonsets/z-mps", FORBIDDEN)
    for _ in range(2):  # the second time it waits for its back-off
        await applier.write(whole_plan(), SECONDS)
        assert "patch gpunodes/n0" in fleet.writes
        fleet.writes.clear()


def template(number: int, name: str = "small") -> Write:
    return of_share(WriteStage.REACH, resource=CLAIM_TEMPLATES, name=name, namespace=f"n{number:03}")


async def test_refused_templates_keep_nobody_waiting(fleet: FakeKube, applier: Applier, clock: Clock) -> None:
    refused, others = [[template(number, name) for number in range(50)] for name in ("refused", "small")]
    fleet.fail("apply resourceclaimtemplates/refused", FORBIDDEN)
    assert await applier.write([*refused, *others, *whole_plan()], SECONDS)
    assert len(fleet.all(CLAIM_TEMPLATES)) == len(others)
    assert fleet.writes.index("apply gpushares/a/status") < fleet.writes.index("apply resourceclaimtemplates/refused")
    fleet.writes.clear()
    assert await applier.write([*refused, label("n0", "false")], SECONDS)
    assert fleet.writes == ["patch nodes/n0"], "the refused ones wait for their back-off"
    clock.now += FIRST_BACKOFF
    await applier.write(refused, SECONDS)
    assert len(fleet.writes) == 1 + len(refused)


async def test_templates_that_are_not_answered_end_with_the_pass(fleet: FakeKube, applier: Applier) -> None:
    fleet.fail("apply resourceclaimtemplates")
    assert not await applier.write([template(number) for number in range(NODE_COUNT)], SECONDS)
    assert len(fleet.writes) == AT_ONCE
    await applier.close()


async def test_a_newer_plan_does_not_overtake_a_finalizer(fleet: FakeKube, applier: Applier) -> None:
    fleet.fail("apply gpushares/a")
    for _ in range(2):
        await applier.write(whole_plan(), SECONDS)
        assert [sent for sent in fleet.writes if "status" not in sent] == ["apply gpushares/a"]
    await applier.close()


async def test_a_silent_node_holds_up_neither_others_nor_the_status(
    fleet: FakeKube, applier: Applier, answered: asyncio.Event
) -> None:
    fleet.fail("patch nodes/n0")
    assert await applier.write(whole_plan(), SECONDS)
    assert len(fleet.writes) == 2 + 2 * NODE_COUNT + 1
    assert [write.name for write in applier.unanswered] == ["n0"]
    fleet.writes.clear()
    answered.clear()
    async with asyncio.timeout(SECONDS / 2):
        await applier.write(whole_plan(), SECONDS)
    assert "patch nodes/n0" not in fleet.writes, "sent already"
    await applier.close()


async def test_an_answer_that_comes_during_a_pass_leads_to_no_second_write(fleet: FakeKube, applier: Applier) -> None:
    """The pass was planned before that answer, so it would write what was written, of a version that is outdated."""
    fleet.fail("patch nodes/n0")
    await applier.write([label("n0")], SECONDS)
    fleet.fail("patch nodes/n0", FORBIDDEN)
    fleet.fail("apply gpushares/a")
    second = asyncio.create_task(applier.write([of_share(WriteStage.HOLD), label("n0", share="b")], SECONDS))
    await fleet.until(lambda: len(applier.unanswered) == 2)
    (first,) = [task for task in asyncio.all_tasks() if "nodes/n0" in task.get_name()]
    first.cancel()
    await second
    assert fleet.writes.count("patch nodes/n0") == 1
    await applier.close()


def test_a_status_follows_few_writes_to_nodes_or_its_first_node() -> None:
    few, many = ([status(), *(label(f"n{number}") for number in range(count))] for count in (64, 65))
    sent_few, sent_many = (
        [[write.stage.name for write in phase] for phase in phases(plan) if phase] for plan in (few, many)
    )
    assert sent_few == [["LABEL"] * 64, ["REPORT"]]
    assert sent_many == [["LABEL", "LABEL", "LABEL", "REPORT", *["LABEL"] * 62]]


class LateKube(FakeKube):
    """Answers an apply after its phase has ended."""

    async def apply(self, *args: Any, **rest: Any) -> Any:
        await asyncio.sleep(2 * SECONDS)
        return await super().apply(*args, **rest)


async def test_a_status_that_an_earlier_one_kept_back_leads_to_a_plan(clock: Clock, answered: asyncio.Event) -> None:
    kube = LateKube()
    kube.put(GPU_SHARES, {"metadata": {"name": "a"}})
    applier = applier_of(kube, clock, answered, WRITE_SECONDS)
    for _ in range(2):
        await applier.write([status()], SECONDS / 10)
    assert not answered.is_set()
    async with asyncio.timeout(30):
        await answered.wait()
    assert kube.writes == ["apply gpushares/a/status"]


async def test_a_status_that_no_later_plan_wants_leads_to_a_plan(clock: Clock, answered: asyncio.Event) -> None:
    """The later plan wanted the status that was known by then, which the answer makes an outdated one."""
    kube = LateKube()
    kube.put(GPU_SHARES, {"metadata": {"name": "a"}})
    applier = applier_of(kube, clock, answered, WRITE_SECONDS)
    await applier.write([status()], SECONDS / 10)
    await applier.write([], SECONDS / 10)
    async with asyncio.timeout(30):
        await answered.wait()
    assert kube.writes == ["apply gpushares/a/status"]


async def test_silent_nodes_of_all_slots_hold_up_no_status(fleet: FakeKube, applier: Applier) -> None:
    fleet.fail("patch nodes")
    assert not await applier.write(whole_plan(), SECONDS)
    assert fleet.writes[-1] == "apply gpushares/a/status"
    assert len(applier.unanswered) == AT_ONCE
    await applier.close()


async def test_writes_without_an_answer_are_bounded(fleet: FakeKube, applier: Applier) -> None:
    fleet.fail()
    for _ in range(UNANSWERED_AT_MOST // AT_ONCE + 1):
        names = [f"n{number}" for number in range(UNANSWERED_AT_MOST)]
        complete = await applier.write(
            [*map(label, names), *map(assignment, names), *map(template, range(NODE_COUNT))], SECONDS
        )
    assert complete, "there is nothing to plan again for, before one is answered"
    assert len(applier.unanswered) == len(fleet.writes) == UNANSWERED_AT_MOST
    await applier.close()


async def test_nodes_without_an_answer_hold_up_no_other_kind(fleet: FakeKube, applier: Applier) -> None:
    """As where an admission webhook for nodes alone is silent."""
    fleet.fail("patch nodes")
    nodes = [label(f"n{number}") for number in range(2 * UNANSWERED_OF_KIND)]
    for _ in range(UNANSWERED_OF_KIND // AT_ONCE):
        await applier.write(nodes, SECONDS / 5)
    assert len(applier.unanswered) == UNANSWERED_OF_KIND
    await applier.write([*nodes, of_share(WriteStage.HOLD), status()], SECONDS / 5)
    assert fleet.writes[UNANSWERED_OF_KIND:] == ["apply gpushares/a", "apply gpushares/a/status"]
    await applier.close()


async def test_a_write_without_an_answer_is_given_up_after_its_time(
    fleet: FakeKube, clock: Clock, answered: asyncio.Event
) -> None:
    applier = applier_of(fleet, clock, answered, 2 * SECONDS)
    fleet.fail("patch nodes/n0")
    await applier.write([label("n0")], SECONDS)
    assert not answered.is_set()
    async with asyncio.timeout(30):
        await answered.wait()
    assert applier.retry_seconds() == FIRST_BACKOFF


async def test_a_newer_plan_replaces_what_has_not_begun(fleet: FakeKube, applier: Applier) -> None:
    for number in range(AT_ONCE):
        fleet.fail(f"patch nodes/n{number:03}")
    assert not await applier.write([label(f"n{number:03}") for number in range(NODE_COUNT)], SECONDS)
    assert len(fleet.writes) == AT_ONCE
    await applier.write([label("n000"), label("n001", "false")], SECONDS)
    assert len(fleet.writes) == AT_ONCE, "the same write is not sent twice, nor two at once for one object"
    await applier.close()


async def test_a_share_of_one_node_does_not_wait_for_one_of_many(fleet: FakeKube, applier: Applier) -> None:
    names = [f"n{number}" for number in range(NODE_COUNT)]
    await applier.write([*map(label, names[:-1]), label(names[-1], share="b")], SECONDS)
    assert fleet.writes.index(f"patch nodes/{names[-1]}") < 2
    assert len(fleet.writes) == NODE_COUNT


def test_shares_take_turns_and_the_writes_to_a_node_stay_together() -> None:
    ordered = in_turns([label("n2", share="b"), label("n0"), label("n1"), assignment("n0"), assignment("n1")])
    assert [(write.stage.name, write.name) for write in ordered] == [
        ("LABEL", "n0"),
        ("LABEL", "n2"),
        ("ASSIGN", "n0"),
        ("LABEL", "n1"),
        ("ASSIGN", "n1"),
    ]


async def test_of_a_plan_for_many_nodes_few_writes_are_tasks(fleet: FakeKube, applier: Applier) -> None:
    fleet.fail()
    before = len(asyncio.all_tasks())
    await applier.write([label(f"n{number}") for number in range(NODE_COUNT)], SECONDS)
    assert len(asyncio.all_tasks()) - before <= AT_ONCE
    await applier.close()


async def test_what_earlier_plans_wanted_is_not_kept(fleet: FakeKube, applier: Applier) -> None:
    def alive() -> int:
        gc.collect()
        return sum(isinstance(obj, Write) for obj in gc.get_objects())

    fleet.fail()
    others = alive()
    for turn in range(20):
        await applier.write([*(label(f"n{number}", str(turn)) for number in range(NODE_COUNT)), status()], 0.02)
    assert alive() - others <= UNANSWERED_AT_MOST, "what is under way"
    await applier.close()


async def test_of_a_changed_object_the_write_is_refused_and_planned_again(
    fleet: FakeKube, applier: Applier, answered: asyncio.Event
) -> None:
    planned_from = fleet.live(NODES, "n0")["metadata"]["resourceVersion"]
    fleet.put(NODES, {"metadata": {"name": "n0", "labels": {"share": "else"}}})
    await applier.write([label("n0", version=planned_from)], SECONDS)
    assert fleet.live(NODES, "n0")["metadata"]["labels"] == {"share": "else"}
    assert answered.is_set()
    assert applier.retry_seconds() == CONFLICT_BACKOFF


async def test_a_write_that_fails_again_waits_twice_as_long(fleet: FakeKube, applier: Applier, clock: Clock) -> None:
    fleet.fail("patch nodes/n0", FORBIDDEN)
    pauses = []
    for _ in range(10):
        await applier.write([label("n0")], SECONDS)
        pauses.append(applier.retry_seconds())
        clock.now += pauses[-1] or 0.0
    assert pauses == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300]
    await applier.write([], SECONDS)
    assert applier.retry_seconds() is None, "no longer wanted"


async def test_an_object_that_always_changes_is_tried_each_16_s(
    fleet: FakeKube, applier: Applier, clock: Clock
) -> None:
    pauses = []
    for _ in range(9):
        await applier.write([label("n0", version="1")], SECONDS)
        pauses.append(applier.retry_seconds())
        clock.now += pauses[-1] or 0.0
    assert pauses == [0.25, 0.5, 1, 2, 4, 8, 16, 16, 16]


async def test_a_deletion_is_not_repeated_before_its_event_had_time(
    fleet: FakeKube, applier: Applier, clock: Clock
) -> None:
    """While a watch lags behind, each plan wants it again."""
    deletion = Write(WriteStage.STOP, "delete", DAEMON_SETS, "z-mps", {}, namespace="ns", shares=frozenset("a"))
    for _ in range(3):
        await applier.write([deletion], SECONDS)
    assert fleet.writes == ["delete daemonsets/z-mps"]
    assert applier.retry_seconds() == FIRST_BACKOFF
    clock.now += FIRST_BACKOFF
    await applier.write([deletion], SECONDS)
    assert len(fleet.writes) == 2
    await applier.write([], SECONDS)
    assert applier.retry_seconds() is None


async def test_a_due_write_under_way_leads_to_no_plan(fleet: FakeKube, applier: Applier, clock: Clock) -> None:
    fleet.fail("patch nodes/n0", FORBIDDEN)
    await applier.write([label("n0")], SECONDS)
    clock.now += FIRST_BACKOFF
    fleet.fail("patch nodes/n0")
    await applier.write([label("n0")], SECONDS)
    assert len(applier.unanswered) == 1
    assert applier.retry_seconds() is None, "else plans would follow each other without a pause"
    await applier.close()


async def test_an_error_of_ours_ends_the_operator(fleet: FakeKube, applier: Applier) -> None:
    fleet.fail("patch nodes/n0", LookupError("a bug"))
    with pytest.raises(LookupError):
        await applier.write([label("n0")], SECONDS)
    with pytest.raises(LookupError):
        await applier.write([status()], SECONDS)


async def test_a_status_alone_leads_to_no_other_plan(applier: Applier, answered: asyncio.Event) -> None:
    """The next plan would find other counts and write them, and so on."""
    await applier.write([status()], SECONDS)
    assert not answered.is_set()
    await applier.write([label("n0"), status()], SECONDS)
    assert answered.is_set()
