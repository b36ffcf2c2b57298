"""A GPU is idle only when the order of withdrawing and reading proves it."""

import pytest

from gpushare.agent.kubelet.holdings import KubeletView, Slots
from gpushare.agent.reconcile.decision import idle

KEY = ("a", "GPU-1")
NONE: Slots = frozenset()
SOME: Slots = frozenset({3})


@pytest.mark.parametrize(
    ("sentence", "withdrawn_at", "started", "allocatable", "held", "pending", "expected"),
    [
        ("withdrawn, confirmed, nothing held: idle", 10.0, 11.0, NONE, NONE, NONE, True),
        ("while free slots are offered it is never idle", None, 11.0, NONE, NONE, NONE, False),
        ("a reading that began before the withdrawal proves nothing", 10.0, 9.0, NONE, NONE, NONE, False),
        ("nor one that began at the same instant", 10.0, 10.0, NONE, NONE, NONE, False),
        ("a slot that the kubelet could still allocate", 10.0, 11.0, SOME, NONE, NONE, False),
        ("a slot that a container holds", 10.0, 11.0, NONE, SOME, NONE, False),
        ("a slot handed out a moment ago", 10.0, 11.0, NONE, NONE, SOME, False),
    ],
)  # fmt: skip
def test_idle(
    sentence: str,
    withdrawn_at: float | None,
    started: float,
    allocatable: Slots,
    held: Slots,
    pending: Slots,
    expected: bool,
) -> None:
    view = KubeletView(started, {KEY: allocatable, ("a", "GPU-2"): SOME}, {KEY: held, ("b", "GPU-1"): SOME})
    assert idle("a", "GPU-1", withdrawn_at, view, pending) is expected, sentence


def test_without_a_reading_nothing_is_idle() -> None:
    assert not idle("a", "GPU-1", 1.0, None, NONE)
