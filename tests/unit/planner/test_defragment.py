"""Which GPUs could be free, and who would wait no more, if pods were started again elsewhere."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.planner.defragment import FilledGpu, defragmentation, long_queues

PER_GPU = 4


def gpu(name: str, free: int, node: str = "n1", **pods: int) -> FilledGpu:
    return FilledGpu(node, name, sum(pods.values()), free, pods)


def planned(*gpus: FilledGpu, **fixed: str) -> tuple[list[str], dict[str, str]]:
    """The GPUs that become free, and where each pod goes."""
    plan = defragmentation(gpus, fixed)
    return [gpu.uuid for gpu in plan.freed], {move.pod: move.target.uuid for move in plan.moves}


@pytest.mark.parametrize(
    ("gpus", "freed", "moves"),
    [
        ([gpu("a", 3, x=1), gpu("b", 2, y=2)], ["a"], {"x": "b"}),
        ([gpu("a", 3, x=1), gpu("b", 4)], [], {}),  # a GPU without clients stays so
        ([gpu("a", 3, x=1)], [], {}),
        ([gpu("a", 3, x=1), gpu("b", 0, y=4)], [], {}),
        ([gpu("a", 2, x=2), gpu("b", 1, y=3)], [], {}),  # both slots of x have to go to one GPU
        ([gpu("a", 2, v=1, w=1), gpu("b", 1, y=3), gpu("c", 1, z=3)], ["a"], {"v": "b", "w": "c"}),
        # Of two that are equally full the one with the higher UUID: `Pack` would choose the other.
        ([gpu("a", 3, x=1), gpu("b", 3, y=1)], ["b"], {"y": "a"}),
        ([gpu("a", 3, x=1), gpu("b", 3, y=1), gpu("c", 1, z=3)], ["b"], {"y": "c"}),
        # The one on its own node, though the other is fuller.
        ([gpu("a", 3, x=1), gpu("b", 2, y=2), gpu("c", 1, "n2", z=3)], ["a"], {"x": "b"}),
        # A GPU that is not ready can be emptied, and gets nobody.
        ([gpu("a", 0, x=1), gpu("b", 2, y=2)], ["a"], {"x": "b"}),
    ],
)
def test_the_emptiest_gpus_are_emptied_into_the_fullest_that_have_room(
    gpus: list[FilledGpu], freed: list[str], moves: dict[str, str]
) -> None:
    assert planned(*gpus) == (freed, moves)


def test_a_gpu_with_a_pod_that_cannot_go_keeps_all_of_them_and_says_why() -> None:
    first, second = gpu("a", 2, x=1, y=1), gpu("b", 2, z=2)
    assert planned(first, second, x="stands still", z="stands still") == ([], {})
    assert defragmentation([first, second], {"z": "stands still"}).kept["b"] == "pod z stands still"


def test_a_pod_moves_only_where_packing_does_not_send_it_back() -> None:
    few, many = gpu("a", 3, x=1), gpu("b", 2, y=1, z=1)
    assert planned(few, many, x="stays") == ([], {})
    assert planned(gpu("a", 3, "n2", x=1), many, x="stays") == (["b"], {"y": "a", "z": "a"})


def queued(name: str, *waiting: str, free: int = 0, node: str = "n1") -> FilledGpu:
    return FilledGpu(node, name, 4, free, waiting=waiting)


@pytest.mark.parametrize(
    ("gpus", "queues"),
    [
        ([queued("a", "x"), queued("b", free=1)], [("a", ["b"], ["x"])]),
        ([queued("a", "x", "y", "z"), queued("b", free=2)], [("a", ["b"], ["z", "y"])]),  # x is next anyway
        ([queued("a", "x", "y", "z"), queued("b", free=1), queued("c", free=9)], [("a", ["b", "c"], ["z", "y", "x"])]),
        # A free place is for one of them.
        ([queued("a", "x"), queued("b", "y", "z"), queued("c", free=1)], [("b", ["c"], ["z"])]),
        ([queued("a", "x"), queued("b", "y"), queued("c", free=2)], [("a", ["c"], ["x"]), ("b", ["c"], ["y"])]),
        ([queued("a", "x"), queued("b", free=1, node="n2")], []),
        ([queued("a", "x"), queued("b")], []),
        ([queued("a"), queued("b", free=1)], []),
    ],
)
def test_a_queue_beside_free_places_of_its_node_is_named(
    gpus: list[FilledGpu], queues: list[tuple[str, list[str], list[str]]]
) -> None:
    named = [(queue.gpu.uuid, [gpu.uuid for gpu in queue.beside], list(queue.pods)) for queue in long_queues(gpus)]
    assert named == queues


def test_a_gpu_with_a_holder_that_nobody_knows_is_not_emptied() -> None:
    unknown = FilledGpu("n1", "a", 2, 2, {"x": 1})
    plan = defragmentation([unknown, gpu("b", 2, y=2)], {"y": "stays"})
    assert plan.kept["a"] == "who holds 1 slot of it is not known"


FLEETS = st.lists(
    st.tuples(st.lists(st.integers(1, PER_GPU), max_size=PER_GPU), st.sampled_from(["n1", "n2"]), st.booleans()),
    max_size=12,
)


@given(FLEETS, st.sets(st.integers(0, 20)))
def test_no_gpu_is_overfilled_and_each_kept_one_has_a_reason(
    sizes: list[tuple[list[int], str, bool]], standing: set[int]
) -> None:
    gpus, number = [], 0
    for index, (slots, node, ready) in enumerate(sizes):
        pods: dict[str, int] = {}
        for size in slots:
            if sum(pods.values()) + size <= PER_GPU:
                pods[f"p{number}"] = size
                number += 1
        held = sum(pods.values())
        gpus.append(FilledGpu(node, f"g{index:02}", held, PER_GPU - held if ready else 0, pods))
    fixed = {f"p{number}": "stays" for number in standing}
    plan = defragmentation(gpus, fixed)

    freed = {gpu.uuid for gpu in plan.freed}
    assert freed | set(plan.kept) == {gpu.uuid for gpu in gpus if gpu.held}
    assert not freed & set(plan.kept)
    received = Counter(dict.fromkeys(freed, 0))
    for move in plan.moves:
        assert move.source.uuid in freed
        assert move.target.held, "nobody goes to a GPU without clients"
        assert move.pod not in fixed
        received[move.target.uuid] += move.slots
    assert all(received[gpu.uuid] <= gpu.free for gpu in gpus)
    assert not any(received[uuid] for uuid in freed)
    assert sorted(move.pod for move in plan.moves) == sorted(pod for gpu in plan.freed for pod in gpu.pods)
