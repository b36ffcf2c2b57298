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
def test_every_item_passes_every_stage_once_in_whatever_order(
    items: int, stages: list[int], capacity: int, choice: Random
) -> None:
    flow = Flow(items, stages, capacity)
    stage_of = [stage for stage, workers in enumerate(stages) for _ in range(workers)]
    passed: dict[int, list[int]] = defaultdict(list)
    slots: dict[int, int] = {}
    busy: dict[int, StageTask] = {}
    while True:
        for task in flow.next_tasks():
            assert task.worker not in busy
            busy[task.worker] = task
            if stage_of[task.worker] == 0:
                assert task.slot not in slots.values()
                slots[task.item] = task.slot
            assert slots[task.item] == task.slot
        if not busy:
            break
        task = busy.pop(choice.choice(sorted(busy)))
        passed[task.item].append(stage_of[task.worker])
        if stage_of[task.worker] == len(stages) - 1:
            del slots[task.item]
        flow.done(task.worker)
        assert len(slots) <= flow.slots
    assert flow.finished
    assert passed == {item: list(range(len(stages))) for item in range(items)}
    assert all(length <= capacity for length in flow.longest)


def test_a_slow_stage_holds_the_ones_before_it_back() -> None:
    flow = Flow(items=10, stages=[8, 1], capacity=2)
    first = flow.next_tasks()
    assert [task.item for task in first] == [0, 1]
    for task in first:
        flow.done(task.worker)
    # One goes to the only worker of the second stage; that makes room for one more in the queue.
    assert [task.item for task in flow.next_tasks()] == [0, 2]
    assert flow.next_tasks() == []


def test_without_items_it_is_finished_at_once() -> None:
    flow = Flow(0, [2, 1])
    assert flow.finished
    assert flow.next_tasks() == []


@pytest.mark.parametrize(("items", "stages", "capacity"), [(-1, [1], 1), (1, [], 1), (1, [1, 0], 1), (1, [1, 1], 0)])
def test_a_stage_without_workers_and_a_queue_without_room_are_refused(
    items: int, stages: list[int], capacity: int
) -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        Flow(items, stages, capacity)


def test_a_worker_without_a_task_cannot_be_done() -> None:
    with pytest.raises(KeyError):
        Flow(1, [1]).done(0)
