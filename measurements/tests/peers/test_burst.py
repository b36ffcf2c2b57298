"""What a burst's figures are made of, and what the table says of them."""

import copy
from typing import Any

import pytest

from localcluster.kubectl import Object
from measurements.peers.burst_table import burst_table
from measurements.peers.cases.burst import seconds
from measurements.peers.ways.way import Gpus

BURST: dict[str, Any] = {
    "idle_percent_before": 91,
    "seconds": {
        "all_created": 10,
        "all_scheduled": 11,
        "all_started": 60,
        "of_a_pod": {"median": 30.5, "least": 2, "largest": 57},
    },
    "until_full": {"readings": 70, "largest_difference": 1, "most_on_a_gpu": 25, "overpacked": 0},
    "full": {"pods_by_gpu": [25, 25], "waiting": 8, "failed": 0},
    "after_deletion": {
        "waiting_pods_started": 8,
        "on_the_gpu_with_room": 7,
        "seconds": 14,
        "overpacked": 1,
        "pods_by_gpu": [26, 13],
    },
}


def pod(created: int, scheduled: int | None = None, started: int | None = None) -> Object:
    """Each at that second."""
    bound = {"type": "PodScheduled", "status": str(scheduled is not None), "lastTransitionTime": at(scheduled or 0)}
    states = [{"state": {"running": {"startedAt": at(started)}}}] if started is not None else []
    return {
        "metadata": {"creationTimestamp": at(created)},
        "status": {"conditions": [bound], "containerStatuses": states},
    }


def at(second: int) -> str:
    return f"2026-11-26T11:{second // 60:02}:{second % 60:02}Z"


def test_seconds_of_a_burst_count_from_its_first_pod() -> None:
    figures = seconds([pod(5, 6, 30), pod(3, 4, 8), pod(9)])
    assert figures == {
        "all_created": 6,
        "all_scheduled": 3,
        "all_started": 27,
        "of_a_pod": {"median": 15, "least": 5, "largest": 25},
    }


def test_places_are_those_of_all_gpus() -> None:
    assert Gpus(8, 1000, 25).places == 200


def rows(*repeats: dict[str, Any]) -> dict[str, str]:
    cases = {f"burst-{number}": figures for number, figures in enumerate(repeats)}
    lines = burst_table({"gpushare": {"cases": cases, "path": "a.json"}}).splitlines()[2:]
    return dict(line.strip("| ").split(" | ") for line in lines)


@pytest.mark.parametrize(
    ("question", "says"),
    [
        ("every place taken: last container started after", "60 s"),
        ("a pod, from its creation until its container started: median (range)", "30.5 s (2–57)"),
        ("pods on the GPUs of the full node", "25 on each"),
        ("pods beyond the places", "8 wait, 0 failed"),
        ("GPUs that ever had more pods than places", "1"),
        ("pods of one GPU deleted: last of those that waited started after", "14 s"),
        ("… and are on that GPU", "7 of 8"),
    ],
)
def test_the_table_says_what_was_found(question: str, says: str) -> None:
    assert rows(BURST)[question] == says


def test_repeats_stand_beside_each_other_unless_they_are_alike() -> None:
    slower = copy.deepcopy(BURST)
    slower["seconds"]["all_started"] = 66
    slower["full"]["pods_by_gpu"] = [26, 24]
    told = rows(BURST, slower)
    assert told["every place taken: last container started after"] == "60 s; 66 s"
    assert told["pods on the GPUs of the full node"] == "25 on each; 26, 24"
    assert told["all pods created after"] == "10 s"
