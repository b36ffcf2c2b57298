"""The sentence about changes that wait for a node's clients."""

from typing import Any

import pytest

from gpushare.agent.status.status import name_pods, what_waits
from gpushare.api.gpunode import Assignment

SINCE = "2026-01-01T00:00:00Z"


@pytest.mark.parametrize(
    ("fields", "pods", "words"),
    [
        ({}, {"ml/a"}, "waits for a new MPS pod since 2026-01-01T00:00:00Z, for pod ml/a"),
        ({"draining": True}, {"ml/b", "ml/a"}, "waits to leave it since 2026-01-01T00:00:00Z, for pods ml/a, ml/b"),
        ({"paused": True}, set(), "for no pod any more: the change is being made"),
        ({"terminate_clients": True}, {"ml/a"}, "for pod ml/a; maxWait is over, so its clients are being ended"),
    ],
)  # fmt: skip
def test_it_says_what_waits_since_when_and_for_which_pods(fields: dict[str, Any], pods: set[str], words: str) -> None:
    waits = Assignment(uuid="GPU-1", share="a", waiting_since=SINCE, **fields)
    serves = Assignment(uuid="GPU-2", share="a")
    sentence = what_waits([serves, waits], {("a", "GPU-1"): pods})
    assert sentence.startswith("GPU GPU-1 of GpuShare a waits ")
    assert sentence.endswith(words)


def test_nothing_is_said_when_nothing_waits() -> None:
    assert what_waits([Assignment(uuid="GPU-1", share="a")], {("a", "GPU-1"): {"ml/a"}}) == ""


def test_of_many_pods_some_are_named_and_the_rest_counted() -> None:
    assert name_pods([f"ml/p{number}" for number in range(10)], most=2) == "pods ml/p0, ml/p1 and 8 more"
