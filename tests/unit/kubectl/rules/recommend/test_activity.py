"""Who does nothing by its own count, and who could give way: only what lasts, and never surer than medium."""

from typing import Any

import pytest

from gpushare.api.gpushare import GpuShare
from gpushare.kubectl.rules.recommend.activity import by_activity
from gpushare.kubectl.rules.recommend.advice import AdviceKind
from gpushare.kubectl.rules.recommend.history import ActivityPast, ContainerPast, HistorySource
from gpushare.kubectl.rules.recommend.sureness import Sureness
from tests.unit.kubectl.rules.recommend.made_up import container, history, share

WEEK, DAYS, HOURS = 2016, 288, 100
"""Samples."""


def with_classes(*allowed: str) -> GpuShare:
    wire = share().wire()
    wire["spec"]["clients"]["classes"] = {"allowed": list(allowed), "default": allowed[0]}
    return GpuShare.model_validate(wire)


CLASSES = with_classes("Normal", "Protected", "BestEffort")


def client(
    pod: str, of_class: str, active: float, launches: int = 1000, samples: int = WEEK, **more: Any
) -> ContainerPast:
    return container(4000, pod=pod, activity=ActivityPast(of_class, active, launches, samples), **more)


SERVICE = client("serve-5d4f7b9c8d-x2k4p", "Protected", 0.4)
BATCH = client("train-0", "Normal", 0.7)


def kinds(*containers: ContainerPast, of: GpuShare = CLASSES, **more: Any) -> list[tuple[AdviceKind, str]]:
    return [(advice.kind, advice.about) for advice in by_activity(history(of, containers=containers, **more))]


@pytest.mark.parametrize(
    ("case", "launches", "samples", "expected"),
    [
        ("a week without a launch", 0, WEEK, [(AdviceKind.IDLE, "ml/train-0")]),
        ("a day without one", 0, DAYS, [(AdviceKind.IDLE, "ml/train-0")]),
        ("hours without one", 0, HOURS, []),
        ("one launch", 1, WEEK, []),
    ],
)
def test_a_client_that_launches_nothing_for_a_day_holds_without_work(
    case: str, launches: int, samples: int, expected: list[Any]
) -> None:
    assert kinds(client("train-0", "Normal", 0.0, launches, samples)) == expected, case


@pytest.mark.parametrize(
    ("case", "containers", "expected"),
    [
        ("beside a service", [SERVICE, BATCH], ["ml/train"]),
        ("two of one workload", [SERVICE, BATCH, client("train-1", "Normal", 0.9)], ["ml/train"]),
        ("the service is on another GPU", [SERVICE, client("train-0", "Normal", 0.7, uuid="GPU-1")], []),
        ("no service", [client("serve-0", "Normal", 0.4), BATCH], []),
        ("a service without work", [client("serve-0", "Protected", 0.0, 0, HOURS), BATCH], []),
        ("seldom at work", [SERVICE, client("train-0", "Normal", 0.4)], []),
        ("best effort already", [SERVICE, client("train-0", "BestEffort", 0.9)], []),
        ("there for hours", [SERVICE, client("train-0", "Normal", 0.9, samples=HOURS)], []),
        ("without a class", [SERVICE, container(4000, pod="train-0")], []),
    ],
)
def test_who_works_most_of_the_time_beside_a_service_could_give_way(
    case: str, containers: list[ContainerPast], expected: list[str]
) -> None:
    assert [about for kind, about in kinds(*containers) if kind is AdviceKind.BEST_EFFORT] == expected, case


def test_a_share_that_allows_no_best_effort_gets_no_advice_of_it() -> None:
    assert kinds(SERVICE, BATCH, of=with_classes("Normal", "Protected")) == []
    assert kinds(SERVICE, BATCH, of=share()) == []


def test_advice_by_a_programs_own_word_is_never_surer_than_medium() -> None:
    idle = client("idle-0", "Normal", 0.0, 0)
    advice = by_activity(history(CLASSES, containers=[SERVICE, BATCH, idle]))
    assert {item.sure for item in advice} == {Sureness.MEDIUM}
    assert len(advice) == 2
    assert all("by its own count" in item.why for item in advice)
    assert all(item.patch is None for item in advice)


def test_a_glimpse_says_nothing_of_activity() -> None:
    assert kinds(SERVICE, BATCH, source=HistorySource.WATCH) == []
