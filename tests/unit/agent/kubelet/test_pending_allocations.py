"""Until when an id that Allocate handed out counts as held."""

import pytest

from gpushare.agent.kubelet.listing import PROMISE_SECONDS, PendingAllocations, settled


@pytest.mark.parametrize(
    ("sentence", "listed", "started", "expected"),
    [
        ("listed by a reading that began later: the kubelet's word holds from now on", True, 100.1, True),
        ("a reading that began before the allocation lists the pod that had the id before", True, 99.9, False),
        ("and one that began at the same instant may", True, 100.0, False),
        ("a later reading without it may have come before the kubelet wrote it down", False, 100.1, False),
        ("a minute later an id without a pod is free", False, 100.1 + PROMISE_SECONDS, True),
        ("and not a moment before", False, 100.0 + PROMISE_SECONDS, False),
    ],
)
def test_settled(sentence: str, listed: bool, started: float, expected: bool) -> None:
    assert settled(100.0, listed, started) is expected, sentence


def test_each_id_is_settled_by_itself() -> None:
    promises = PendingAllocations()
    promises.add(["a", "b"], 1.0)
    promises.settle({"b", "of nobody here"}, 2.0)
    assert promises.ids() == {"a"}


def test_a_reading_of_the_pod_before_does_not_settle_an_id_that_was_handed_out_again() -> None:
    promises = PendingAllocations()
    promises.add(["a"], 1.0)
    promises.add(["a"], 3.0)
    promises.settle({"a"}, 2.0)
    assert promises.ids() == {"a"}
    promises.settle({"a"}, 4.0)
    assert promises.ids() == frozenset()
