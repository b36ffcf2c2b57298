"""The event that says which GPU a container got: once for each start, and without a neighbour's name."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpushare.agent.observe.placement import DOWNTIME, Placements
from gpushare.agent.observe.unused import RunningPart
from gpushare.grant.model import Grant
from gpushare.kube.events.event import Event
from tests.unit.agent.observed_pods import UUID, container, pod, share, uid

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def part(number: int = 1, name: str = "app", started: datetime | None = BEGAN, gpu: str = UUID) -> RunningPart:
    return RunningPart("a", gpu, uid(number), ("team", f"pod-{number}", name), started)


def looked(placements: Placements, *parts: RunningPart, **fields: Any) -> list[Event]:
    pods = {uid(number): pod(number) for number in (1, 2, 3)}
    claims = fields.pop("claims", {})
    return placements.look(parts, fields.pop("pods", pods), fields.pop("shares", {"a": share()}), lambda: claims)


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ((), "no other container has a part of that GPU now"),
        ((part(2),), "1 other container has a part of that GPU now"),
        ((part(2), part(3), part(3, gpu="GPU-1")), "2 other containers have parts of that GPU now"),
    ],
)
def test_a_new_container_is_told_its_gpu_its_grant_and_its_neighbours(
    others: tuple[RunningPart, ...], words: str
) -> None:
    first = looked(Placements(BEGAN), part(), *others)[0]
    assert first.note == (
        f"Container app got 25% of the SMs, 8Gi of memory and 2 processes on GPU GPU-0, by GpuShare a; {words}"
    )
    assert (first.regarding["uid"], first.type, first.reason) == (uid(1), "Normal", "GpuPartGranted")


def test_each_start_of_a_container_is_one_event_whoever_comes_later() -> None:
    placements = Placements(BEGAN)
    (event,) = looked(placements, part())
    assert looked(placements, part()) == []
    assert [event.regarding["name"] for event in looked(placements, part(), part(2))] == ["pod-2"]
    (again,) = looked(placements, part(started=BEGAN + timedelta(hours=1)), part(2))
    assert again.content != event.content


def test_a_restarted_agent_repeats_nothing_and_leaves_out_nothing() -> None:
    before = part(1, started=BEGAN - DOWNTIME - timedelta(seconds=1))
    between = part(2, started=BEGAN - DOWNTIME)
    unknown = part(3, started=None)
    assert [event.regarding["name"] for event in looked(Placements(BEGAN), before, between, unknown)] == ["pod-2"]
    assert looked(Placements(BEGAN), between)[0].content == looked(Placements(BEGAN), between, before)[0].content


def test_a_claims_grant_is_that_of_the_claim() -> None:
    claims = {("team", "pod-1", "app"): Grant("a", 7, 1024, 1)}
    pods = {uid(1): pod(1, container(share=None, grant=None))}
    (event,) = looked(Placements(BEGAN), part(), pods=pods, claims=claims)
    assert "got 7% of the SMs, 1Gi of memory and 1 process on" in event.note


@pytest.mark.parametrize("pods", [{}, {uid(1): pod(1, container("other"))}])
def test_of_what_is_not_known_nothing_is_said(pods: dict[str, Any]) -> None:
    assert looked(Placements(BEGAN), part(), pods=pods) == []
