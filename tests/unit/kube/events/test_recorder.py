"""Events are written once per change, whatever loops and restarts do; what comes back counts up its event's series."""

import asyncio
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.api.conditions import EventReason
from gpushare.kube.client import EVENTS, KubeError, Object, Resource
from gpushare.kube.events.correlator import BURST, REFILL_SECONDS, EventCorrelator
from gpushare.kube.events.event import Event
from gpushare.kube.events.recorder import AT_ONCE, MAX_REQUESTS, PAUSES, EventRecorder
from tests.unit.fake_kube import FakeKube

POD = {"apiVersion": "v1", "kind": "Pod", "name": "app", "namespace": "team", "uid": "u1"}
ABOVE = Event(
    POD, "Warning", EventReason.CLIENT_TERMINATED, "Observe", "uses 9 GiB of 8 GiB", subject="app", key="above"
)


def stored(kube: FakeKube) -> list[tuple[str, int]]:
    """(note, how often) of each event, as kubectl shows them."""
    assert all(event["series"]["count"] >= 2 for event in kube.all(EVENTS) if "series" in event), "the API demands it"
    return [(event["note"], event.get("series", {}).get("count", 1)) for event in kube.all(EVENTS)]


@pytest.fixture
def kube() -> FakeKube:
    return FakeKube()


@pytest.fixture
def start(kube: FakeKube) -> Callable[[], EventRecorder]:
    """Each call is a process of the agent; the clock stands still."""
    return lambda: EventRecorder(kube, "gpushare-agent", "agent-1", clock=lambda: 0.0)


class SlowKube:
    """`kube`, where a request takes some time. `most`: requests at the same time."""

    def __init__(self, kube: FakeKube) -> None:
        self.most = 0
        self._kube = kube
        self._now = 0

    async def create(self, resource: Resource, body: Object, namespace: str | None = None) -> Object:
        self._now += 1
        self.most = max(self.most, self._now)
        await asyncio.sleep(0.001)
        self._now -= 1
        return await self._kube.create(resource, body, namespace)

    async def patch(
        self, resource: Resource, name: str, body: Any, *, manager: str, namespace: str | None = None
    ) -> Object:
        return await self._kube.patch(resource, name, body, manager=manager, namespace=namespace)


async def record(recorder: EventRecorder, *events: Event) -> None:
    for event in events:
        recorder.record(event)
        await recorder.flush()


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(500):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("not within 5 s")


async def test_a_loop_that_repeats_itself_leaves_one_event_and_one_request(kube: FakeKube, start: Any) -> None:
    recorder = start()
    for gib in range(9, 30):
        await record(recorder, replace(ABOVE, note=f"uses {gib} GiB of 8 GiB"))
    assert stored(kube) == [("uses 9 GiB of 8 GiB", 1)]
    assert len(kube.requests) == 1


async def test_without_a_key_another_note_is_another_event(kube: FakeKube, start: Any) -> None:
    first, second = replace(ABOVE, key="", note="one"), replace(ABOVE, key="", note="two")
    await record(start(), first, first, second, second)
    assert stored(kube) == [("one", 1), ("two", 1)]


async def test_a_restarted_process_does_not_write_an_event_that_is_stored(kube: FakeKube, start: Any) -> None:
    for _ in range(3):
        await record(start(), ABOVE, ABOVE)
    assert stored(kube) == [(ABOVE.note, 1)]


@pytest.mark.parametrize(
    "other",
    [
        replace(ABOVE, subject="sidecar"),
        replace(ABOVE, reason=EventReason.GPU_RELEASED),
        replace(ABOVE, regarding=POD | {"uid": "u2"}),
    ],
)
async def test_another_container_reason_or_object_has_an_event_of_its_own(
    kube: FakeKube, start: Any, other: Event
) -> None:
    await record(start(), ABOVE, other, ABOVE, other)
    assert [count for _, count in stored(kube)] == [1, 1]


async def test_what_ended_and_came_back_counts_up_its_event(kube: FakeKube, start: Any) -> None:
    recorder = start()
    for _ in range(3):
        await record(recorder, ABOVE, ABOVE)
        recorder.resolve(POD, ABOVE.reason, ABOVE.subject)
    assert stored(kube) == [(ABOVE.note, 3)]
    assert kube.all(EVENTS)[0]["series"]["lastObservedTime"].endswith("Z")


async def test_what_changes_and_changes_back_counts_up_both_events(kube: FakeKube, start: Any) -> None:
    recorder, below = start(), replace(ABOVE, key="below", note="is back below")
    await record(recorder, ABOVE, below, ABOVE, below, ABOVE)
    assert Counter(dict(stored(kube))) == {ABOVE.note: 3, below.note: 2}


async def test_an_occurrence_counts_even_if_the_last_process_recorded_it_too(kube: FakeKube, start: Any) -> None:
    occurrence = replace(ABOVE, happened=True)
    await record(start(), occurrence)
    await record(start(), occurrence)
    assert stored(kube) == [(ABOVE.note, 2)]


async def test_a_repetition_of_an_event_that_is_gone_by_age_is_written_anew(kube: FakeKube, start: Any) -> None:
    recorder = start()
    await record(recorder, ABOVE)
    for event in kube.all(EVENTS):
        kube.remove(EVENTS, event["metadata"]["name"], event["metadata"]["namespace"])
    recorder.resolve(POD, ABOVE.reason, ABOVE.subject)
    await record(recorder, ABOVE)
    assert stored(kube) == [(ABOVE.note, 1)]


PASSING = [KubeError(503, "ServiceUnavailable", "try later"), KubeError(429, "TooManyRequests", ""), TimeoutError()]


@pytest.mark.parametrize("error", PASSING)
async def test_an_event_that_waited_for_a_server_is_written_with_its_own_time(kube: FakeKube, error: Exception) -> None:
    recorder = EventRecorder(kube, "gpushare-agent", "agent-1", clock=lambda: 0.0, pauses=[0.02] * 200)
    kube.fail("create", error)
    await record(recorder, ABOVE)
    before = datetime.now(UTC)
    await asyncio.sleep(0.1)
    assert recorder.requests_under_way == 1
    assert kube.all(EVENTS) == []
    kube.heal()
    await until(lambda: bool(kube.all(EVENTS)))
    (event,) = kube.all(EVENTS)
    assert datetime.fromisoformat(event["eventTime"]) <= before
    await asyncio.sleep(0.1)
    assert (recorder.requests_under_way, stored(kube)) == (0, [(ABOVE.note, 1)])


async def test_an_event_that_no_server_takes_for_too_long_is_given_up(
    kube: FakeKube, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = EventRecorder(kube, "gpushare-agent", "agent-1", clock=lambda: 0.0, pauses=[0.01, 0.01])
    kube.fail("create", PASSING[0])
    await record(recorder, ABOVE)
    await until(lambda: not recorder.requests_under_way)
    assert len(kube.requests) == 3
    assert [line for line in caplog.messages if "not written:" in line] == caplog.messages[-1:]
    kube.heal()
    await record(recorder, ABOVE)
    assert stored(kube) == [(ABOVE.note, 1)], "recorded again it is written"


async def test_a_full_queue_drops_normal_events_for_warnings_but_no_warning(
    kube: FakeKube,
) -> None:
    recorder = EventRecorder(kube, "gpushare-agent", "agent-1", clock=lambda: 0.0, pauses=[1.5] * 20)
    kube.fail("create", PASSING[0])
    normal = [replace(ABOVE, type="Normal", regarding=POD | {"uid": f"n{number}"}) for number in range(2)]
    warnings = [replace(ABOVE, regarding=POD | {"uid": f"w{number}"}) for number in range(MAX_REQUESTS)]
    await record(recorder, *normal, *warnings, replace(ABOVE, regarding=POD | {"uid": "one too many"}))
    assert recorder.requests_under_way == MAX_REQUESTS
    kube.heal()
    await until(lambda: not recorder.requests_under_way)
    assert {event["regarding"]["uid"] for event in kube.all(EVENTS)} == {event.regarding["uid"] for event in warnings}


def test_an_event_is_tried_again_for_a_day() -> None:
    assert 24 <= sum(PAUSES) / 3600 < 25


async def test_an_event_that_waits_to_be_retried_ends_with_its_recorder(kube: FakeKube) -> None:
    recorder = EventRecorder(kube, "gpushare-agent", "agent-1", clock=lambda: 0.0, pauses=[0.05])
    kube.fail("create", PASSING[0])
    await record(recorder, ABOVE)
    await recorder.close()
    kube.heal()
    await asyncio.sleep(0.2)
    assert (recorder.requests_under_way, len(kube.requests)) == (0, 1)


async def test_an_event_that_was_refused_is_written_when_it_is_recorded_again(kube: FakeKube, start: Any) -> None:
    recorder = start()
    kube.fail("create", KubeError(403, "Forbidden", "no"))
    await record(recorder, ABOVE)
    assert recorder.requests_under_way == 0
    kube.heal()
    await record(recorder, ABOVE, ABOVE)
    assert stored(kube) == [(ABOVE.note, 1)]


async def test_a_flapping_object_costs_a_burst_then_one_event_in_five_minutes(
    kube: FakeKube,
) -> None:
    now = 0.0
    recorder = EventRecorder(kube, "gpushare-agent", "agent-1", clock=lambda: now)
    for number in range(100):
        await record(recorder, replace(ABOVE, key=str(number)))
    assert len(kube.all(EVENTS)) == BURST
    await record(recorder, replace(ABOVE, reason=EventReason.GPU_RELEASED))
    assert len(kube.all(EVENTS)) == BURST + 1, "what is recorded often holds up nothing else"
    now = 2 * REFILL_SECONDS
    for number in range(100, 200):
        await record(recorder, replace(ABOVE, key=str(number)))
    assert len(kube.all(EVENTS)) == BURST + 3


async def test_the_memory_is_bounded_and_forgotten_events_are_stored_once(
    kube: FakeKube,
) -> None:
    recorder = EventRecorder(kube, "gpushare-agent", "agent-1", lambda: 0.0, EventCorrelator(topics=2))
    containers = [replace(ABOVE, subject=f"c{number}", regarding=POD | {"uid": f"u{number}"}) for number in range(4)]
    await record(recorder, *containers, *containers)
    assert [count for _, count in stored(kube)] == [1] * 4


async def test_an_event_about_the_whole_cluster_stands_in_namespace_default(kube: FakeKube, start: Any) -> None:
    share = {"apiVersion": "gpushare.dev/v1alpha1", "kind": "GpuShare", "name": "inference", "uid": "u9"}
    await record(start(), replace(ABOVE, regarding=share))
    (event,) = kube.all(EVENTS)
    assert event["metadata"]["namespace"] == "default"
    assert event["metadata"]["name"].startswith("inference.")


async def test_an_api_server_that_hangs_holds_up_nobody_and_piles_up_no_requests(
    kube: FakeKube, start: Any, caplog: pytest.LogCaptureFixture
) -> None:
    kube.fail("create")
    recorder = start()
    for number in range(1000):
        recorder.record(replace(ABOVE, regarding=POD | {"uid": f"u{number}"}))
    assert recorder.requests_under_way == MAX_REQUESTS
    assert [line for line in caplog.messages if "too many are under way" in line] == caplog.messages[-1:]
    async with asyncio.timeout(5):
        await recorder.close()
    assert recorder.requests_under_way == 0


async def test_of_many_events_few_are_on_the_way_at_a_time_and_all_are_written(kube: FakeKube) -> None:
    recorder = EventRecorder(slow := SlowKube(kube), "gpushare-agent", "agent-1", clock=lambda: 0.0)
    for number in range(MAX_REQUESTS):
        recorder.record(replace(ABOVE, regarding=POD | {"uid": f"u{number}"}))
    await recorder.flush()
    assert slow.most == AT_ONCE
    assert len(stored(kube)) == MAX_REQUESTS


async def test_whoever_waits_for_events_and_gives_up_takes_none_along(kube: FakeKube) -> None:
    recorder = EventRecorder(SlowKube(kube), "gpushare-agent", "agent-1", clock=lambda: 0.0)
    recorder.record(ABOVE)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await recorder.flush()
    await recorder.flush()
    assert stored(kube) == [(ABOVE.note, 1)]


recorded = st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("xyz"), st.booleans(), st.booleans()), max_size=40)


@given(recorded)
def test_in_whatever_order_only_changes_are_written_and_counts_never_skip(
    recorded: list[tuple[str, str, bool, bool]],
) -> None:
    correlator, last, written = EventCorrelator(), dict[str, str | None](), Counter[tuple[str, str]]()
    for step, (subject, content, resolved, happened) in enumerate(recorded):
        if resolved:
            correlator.resolve(POD, ABOVE.reason, subject)
            last[subject] = None
        event = replace(ABOVE, subject=subject, key=content, happened=happened)
        # So much later that the rate limit never decides.
        result = correlator.correlate(event, step * REFILL_SECONDS)
        assert (result is not None) == (happened or last.get(subject) != content)
        if result is not None:
            written[subject, content] += 1
            assert result.count == written[subject, content]
        last[subject] = content


@pytest.mark.parametrize("name", ["a" * 199 + "-" + "b" * 20, "a" * 198 + ".-b", "a" * 197 + "-.-" + "b" * 50])
async def test_no_name_of_a_pod_makes_an_event_that_the_api_server_refuses(
    kube: FakeKube, start: Any, name: str
) -> None:
    await record(start(), replace(ABOVE, regarding=POD | {"name": name}))
    [event] = kube.all(EVENTS)
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", event["metadata"]["name"])
    assert event["regarding"]["name"] == name
