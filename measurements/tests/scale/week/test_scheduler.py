"""The model of kube-scheduler against sums made by hand from its source."""

import random

import numpy as np
import pytest

from measurements.scale.week.scheduler import PoolNodes, Request, Scheduler, nodes_to_find


def pool(cpu: list[int], units: list[int], *, scored: bool = True, position: list[int] | None = None) -> PoolNodes:
    """Nodes with 100 MiB each."""
    places = position or list(range(len(cpu)))
    return PoolNodes(
        np.array(places), np.array([cpu, [100] * len(cpu)]), np.array(units), np.array(units), scored=scored
    )


def asked(cpu: int, memory: int, units: int = 1) -> Request:
    return Request(cpu, memory, "pool", units)


@pytest.mark.parametrize(("nodes", "enough"), [(20, 20), (99, 99), (100, 100), (500, 230), (1951, 682), (10_000, 500)])
def test_the_scheduler_looks_at_as_many_feasible_nodes_as_its_source_says(nodes: int, enough: int) -> None:
    assert nodes_to_find(nodes) == enough


def test_the_default_score_is_what_is_left_and_its_balance() -> None:
    # Left: (70 + 80) / 2 = 75. Balance: without the pod 100, with it int((1 - |0.3 - 0.2| / 2) * 100) = 95, so
    # 50 + (50 + 95 - 100) // 2 = 72.
    assert pool([100], [8]).scores(np.array([0]), asked(30, 20), packed=False).tolist() == [75 + 72]


def test_packed_the_extended_resource_counts_five_times() -> None:
    # (30 + 20 + 5 * 12) // 7 = 15, beside the balance as above.
    assert pool([100], [8]).scores(np.array([0]), asked(30, 20), packed=True).tolist() == [15 + 72]


def test_packed_the_weight_may_be_another_one() -> None:
    # (30 + 20 + 100 * 12) // 102 = 12.
    scores = pool([100], [8]).scores(np.array([0]), asked(30, 20), packed=True, gpu_weight=100)
    assert scores.tolist() == [12 + 72]


def test_the_weight_says_whether_cpu_or_the_resource_decides() -> None:
    for weight, taken in ((1, 0), (100, 1)):
        nodes = pool([100, 100], [8, 8])
        nodes.change(0, asked(60, 60, 1), 1)
        nodes.change(1, asked(10, 10, 4), 1)
        scheduler = Scheduler(2, random.Random(1), packed=True, gpu_weight=weight)
        assert scheduler.choose(nodes, asked(10, 10)) == taken


def test_packed_a_claim_is_not_seen() -> None:
    nodes = pool([100], [8], scored=False)
    assert nodes.scores(np.array([0]), asked(30, 20), packed=True).tolist() == [25 + 72]


def test_a_node_that_gets_better_balanced_scores_higher() -> None:
    nodes = pool([100, 100], [8, 8])
    nodes.change(0, asked(40, 0), 1)
    first, second = nodes.scores(np.array([0, 1]), asked(0, 40), packed=False).tolist()
    # 60 left of both; balance from 80 to 100: 50 + (50 + 20) // 2 = 85. The other: 80 left, from 100 to 80: 65.
    assert (first, second) == (60 + 85, 80 + 65)


def test_by_default_pods_spread_and_packed_they_share_a_node() -> None:
    for packed, nodes_used in ((False, 4), (True, 1)):
        nodes, scheduler = pool([100] * 4, [8] * 4), Scheduler(4, random.Random(1), packed=packed)
        used = set()
        for _ in range(4):
            node = scheduler.choose(nodes, asked(10, 10))
            assert node is not None
            nodes.change(node, asked(10, 10), 1)
            used.add(node)
        assert len(used) == nodes_used


@pytest.mark.parametrize("request_", [asked(101, 1), asked(1, 101), asked(1, 1, 9)])
def test_a_pod_fits_nowhere_without_cpu_memory_or_gpus(request_: Request) -> None:
    nodes = pool([100, 100], [8, 8])
    assert Scheduler(2, random.Random(1), packed=False).choose(nodes, request_) is None
    assert not nodes.fits(0, request_)


def test_what_a_pod_had_is_free_again_when_it_goes() -> None:
    nodes = pool([100], [8])
    nodes.change(0, asked(100, 100), 1)
    assert not nodes.fits(0, asked(1, 1))
    nodes.change(0, asked(100, 100), -1)
    assert nodes.fits(0, asked(100, 100))
    assert nodes.scores(np.array([0]), asked(30, 20), packed=False).tolist() == [75 + 72]


def test_the_search_goes_on_where_it_stopped_in_the_list_of_all_nodes() -> None:
    # Of 200 nodes, every second one is in the pool, all feasible and alike; 98 of them are enough.
    nodes = pool([100] * 100, [8] * 100, position=list(range(0, 400, 4)))
    scheduler = Scheduler(400, random.Random(1), packed=False)
    enough = nodes_to_find(400)
    assert enough == 188
    assert len(scheduler.best(nodes, asked(1, 1))) == 100  # fewer than enough: the whole list was searched
    many = pool([100] * 400, [8] * 400)
    assert scheduler.best(many, asked(1, 1)).tolist() == list(range(188))
    assert scheduler.best(many, asked(1, 1)).tolist() == list(range(188, 376))
    assert scheduler.best(many, asked(1, 1)).tolist() == [*range(376, 400), *range(164)]


def test_the_lot_reaches_each_of_the_best() -> None:
    nodes, scheduler = pool([100] * 3, [8] * 3), Scheduler(3, random.Random(1), packed=False)
    assert {scheduler.choose(nodes, asked(1, 1)) for _ in range(50)} == {0, 1, 2}
