"""Items through stages: each passes each stage once and in order, and nothing ever exceeds its bound."""

from collections import defaultdict
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare_workload.processes.flow import Flow, StageTask


@given(
    items=st.integers(0, 25),
    stages=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    capacity=st.integers(1, 4),
    choice=st.randoms(use_true_random=False),
)
def test_in_whatever_order_workers_finish_every_item_passes_every_stage_once(
    items: int, stages: list[int], capacity: int, choice: Random
) -> None:
    flow = Flow(items, stages, capacity)
    stage_of = [stage for stage, workers in enumerate(stages) for _ in range(workers)]
    passed: dict[int, list[int]] = defaultdict(list)
    slots: dict[int, int] = {}
    busy: dict[int, StageTask] = {}
    while True:
        for order in flow.orders():
            assert order.worker not in busy
            busy[order.worker] = order
            if stage_of[order.worker] == 0:
                assert order.slot not in slots.values()
                slots[order.item] = order.slot
            assert slots[order.item] == order.slot
        if not busy:
            break
        order = busy.pop(choice.choice(sorted(busy)))
        passed[order.item].append(stage_of[order.worker])
        if stage_of[order.worker] == len(stages) - 1:
            del slots[order.item]
        flow.done(order.worker)
        assert len(slots) <= flow.slots
    assert flow.finished
    assert passed == {item: list(range(len(stages))) for item in range(items)}
    assert all(length <= capacity for length in flow.longest)


def test_a_slow_stage_holds_the_ones_before_it_back() -> None:
    flow = Flow(items=10, stages=[8, 1], capacity=2)
    first = flow.orders()
    assert [order.item for order in first] == [0, 1]
    for order in first:
        flow.done(order.worker)
    # One goes to the only worker of the second stage; that makes room for one more in the queue.
    assert [order.item for order in flow.orders()] == [0, 2]
    assert flow.orders() == []


def test_without_items_it_is_finished_at_once() -> None:
    flow = Flow(0, [2, 1])
    assert flow.finished
    assert flow.orders() == []


@pytest.mark.parametrize(("items", "stages", "capacity"), [(-1, [1], 1), (1, [], 1), (1, [1, 0], 1), (1, [1, 1], 0)])
def test_a_stage_without_workers_and_a_queue_without_room_are_refused(
    items: int, stages: list[int], capacity: int
) -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        Flow(items, stages, capacity)


def test_a_worker_that_was_given_nothing_cannot_be_done() -> None:
    with pytest.raises(KeyError):
        Flow(1, [1]).done(0)
