"""Parts of a GPU without a client: who holds one, since when, and what of it is published."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.agent.observe.unused import PUBLISHED_AFTER, RunningPart, Unused, UnusedParts, running_parts
from gpushare.agent.observe.usage import Reading
from gpushare.api.gpunode import MAX_UNUSED, UnusedPart
from tests.unit.agent.observed_pods import UUID, container, pod, process, uid, usage

START = datetime(2026, 1, 1, tzinfo=UTC)
PART = RunningPart("a", UUID, uid(1), ("team", "pod-1", "app"), START)
BUSY = {UUID: Reading(UUID, "a", 1.0, 143155, (usage(process(7)),))}
FREE = {UUID: Reading(UUID, "a", 1.0, 143155, ())}


def at(minutes: float) -> datetime:
    return START + timedelta(minutes=minutes)


def followed(
    *turns: tuple[float, Any], before: Iterable[UnusedPart] = (), parts: Iterable[RunningPart] = (PART,)
) -> Any:
    """(minutes from START, readings) of each turn; the agent began at START."""
    unused = UnusedParts(list(before), START)
    for minutes, readings in turns:
        unused.update(readings, parts, at(minutes))
    return unused


def published(**fields: Any) -> UnusedPart:
    values = {"uuid": UUID, "share": "a", "namespace": "team", "pod": "pod-1", "container": "app"}
    return UnusedPart.model_validate({**values, "unusedSince": "2026-01-01T00:00:00Z", **fields})


def test_a_container_that_never_had_a_client_is_unused_since_it_started() -> None:
    assert followed((1, FREE), (5, FREE)).longest_first == (Unused(PART, START),)


def test_one_that_had_a_client_is_unused_since_it_was_seen_last() -> None:
    assert followed((1, FREE), (3, BUSY), (4, BUSY), (9, FREE)).longest_first == (Unused(PART, at(4)),)


@pytest.mark.parametrize(
    ("of", "is_used"),
    [
        ({}, True),
        ({"container": ""}, True),
        ({"container": "side"}, False),
        ({"pod_uid": uid(2)}, False),
        ({"pod_uid": "", "container": ""}, False),
    ],
)
def test_a_process_of_an_unknown_container_counts_for_its_whole_pod(of: dict[str, str], is_used: bool) -> None:
    reading = Reading(UUID, "a", 1.0, 143155, (usage(process(7), **of),))
    assert followed((1, {UUID: reading})).longest_first == (() if is_used else (Unused(PART, START),))


@pytest.mark.parametrize("nothing", [{}, {UUID: Reading(UUID, "b", 1.0, 143155, ())}])
def test_without_a_reading_nothing_is_called_unused_and_what_was_stays_so(nothing: Any) -> None:
    assert followed((1, nothing)).longest_first == ()
    assert followed((1, FREE), (2, nothing)).longest_first == (Unused(PART, START),)
    assert followed((1, FREE), (2, BUSY), (3, nothing)).longest_first == ()


def test_a_container_that_has_ended_is_forgotten() -> None:
    unused = followed((1, FREE))
    unused.update(FREE, (), at(2))
    assert unused.longest_first == ()


@pytest.mark.parametrize(("minutes", "count"), [(1.9, 0), (2, 1)])
def test_what_lasts_is_published_with_the_same_times_at_every_turn(minutes: float, count: int) -> None:
    item = published(heldSince="2026-01-01T00:00:00Z")
    assert followed((1, FREE)).published(at(minutes)) == [item] * count
    assert followed((1, FREE), (1.2, FREE), (1.4, FREE)).published(at(minutes)) == [item] * count


def test_a_restarted_agent_goes_on_with_what_was_published() -> None:
    earlier = published(unusedSince="2025-12-31T20:00:00Z")
    old = RunningPart("a", UUID, uid(1), ("team", "pod-1", "app"), START - timedelta(days=1))
    unused = followed((1, FREE), before=[earlier], parts=[old])
    assert unused.longest_first == (Unused(old, START - timedelta(hours=4)),)
    assert [item.unused_since for item in unused.published(at(1))] == ["2025-12-31T20:00:00Z"]


def test_an_earlier_container_of_the_same_name_does_not_count() -> None:
    assert followed((1, FREE), before=[published(unusedSince="2025-12-31T20:00:00Z")]).longest_first == (
        Unused(PART, START),
    )


def test_an_agent_does_not_know_what_was_before_it() -> None:
    old = RunningPart("a", UUID, uid(1), ("team", "pod-1", "app"), START - timedelta(days=1))
    unknown = RunningPart("a", UUID, uid(2), ("team", "pod-2", "app"), None)
    assert followed((1, FREE), parts=[old, unknown]).longest_first == (Unused(old, START), Unused(unknown, START))


def test_those_unused_longest_are_published_first_and_few_of_many() -> None:
    parts = [
        RunningPart("a", UUID, uid(n), ("team", f"pod-{n}", "app"), START + timedelta(seconds=n))
        for n in range(99, 0, -1)
    ]
    names = [item.pod for item in followed((1, FREE), parts=parts).published(at(60))]
    assert names == [f"pod-{n}" for n in range(1, MAX_UNUSED + 1)]


@given(st.lists(st.sampled_from([BUSY, FREE, {}]), min_size=1, max_size=30))
def test_it_is_never_dated_before_the_last_time_it_was_used(turns: list[Any]) -> None:
    unused, last = UnusedParts([], START), START
    for minute, readings in enumerate(turns, start=1):
        unused.update(readings, [PART], at(minute))
        last = at(minute) if readings is BUSY else last
        assert all(item.since == last for item in unused.longest_first)
        assert bool(unused.longest_first) <= (readings is not BUSY)


def test_running_containers_with_a_part_are_looked_at() -> None:
    listed = pod(1, container("app"), container("side"))
    listed["status"]["containerStatuses"][0]["state"] = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
    waiting = pod(2)
    waiting["status"]["containerStatuses"][0]["state"] = {"waiting": {}}
    places = {("team", "pod-1", "app"): [("a", UUID)], ("team", "pod-2", "app"): [("a", UUID)]}
    assert list(running_parts([listed, waiting], places)) == [PART]
    several = {("team", "pod-1", "app"): [("a", UUID), ("a", "GPU-9")]}
    assert [part.uuid for part in running_parts([listed], several)] == [UUID, "GPU-9"]
    assert timedelta(minutes=2) == PUBLISHED_AFTER, "as the API's documentation says"
