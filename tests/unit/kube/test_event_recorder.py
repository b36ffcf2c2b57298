"""Events are written once per change, whatever loops and restarts do; what comes back counts up its event's series."""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.api.conditions import EventReason
from gpushare.kube import event_correlator
from gpushare.kube.client import EVENTS, KubeError, Object, Resource
from gpushare.kube.event_correlator import EventCorrelator
from gpushare.kube.event_recorder import MAX_REQUESTS, EventRecorder
from gpushare.kube.events import Event

POD = {"apiVersion": "v1", "kind": "Pod", "name": "app", "namespace": "team", "uid": "u1"}
ABOVE = Event(
    POD, "Warning", EventReason.CLIENT_TERMINATED, "Observe", "uses 9 GiB of 8 GiB", subject="app", key="above"
)


class Api:
    """Events by name, refused as the API server refuses them."""

    def __init__(self) -> None:
        self.events: dict[str, Object] = {}
        self.requests = 0
        self.broken = False

    async def create(self, resource: Resource, body: Object, namespace: str | None = None) -> Object:
        self._ask(resource)
        name = body["metadata"]["name"]
        assert namespace == body["metadata"]["namespace"]
        if name in self.events:
            raise KubeError(409, "AlreadyExists", name)
        self.events[name] = body
        return body

    async def patch(
        self, resource: Resource, name: str, body: Any, *, manager: str, namespace: str | None = None
    ) -> Object:
        self._ask(resource)
        if name not in self.events:
            raise KubeError(404, "NotFound", name)
        assert namespace == self.events[name]["metadata"]["namespace"]
        assert body["series"]["count"] >= 2, "the API demands it"
        self.events[name] |= body
        return self.events[name]

    def _ask(self, resource: Resource) -> None:
        assert resource == EVENTS
        self.requests += 1
        if self.broken:
            raise KubeError(503, "ServiceUnavailable", "try later")

    def stored(self) -> list[tuple[str, int]]:
        """(note, how often), as kubectl shows them."""
        return [(it["note"], it.get("series", {}).get("count", 1)) for it in self.events.values()]


@pytest.fixture
def api() -> Api:
    return Api()


@pytest.fixture
def start(api: Api) -> Callable[[], EventRecorder]:
    """Each call is a process of the agent; the clock stands still."""
    return lambda: EventRecorder(api, "gpushare-agent", "agent-1", clock=lambda: 0.0)


async def record(recorder: EventRecorder, *events: Event) -> None:
    for event in events:
        recorder.record(event)
        await recorder.flush()


async def test_a_loop_that_records_the_same_for_ever_leaves_one_event_and_one_request(api: Api, start: Any) -> None:
    recorder = start()
    for gib in range(9, 30):
        await record(recorder, replace(ABOVE, note=f"uses {gib} GiB of 8 GiB"))
    assert api.stored() == [("uses 9 GiB of 8 GiB", 1)]
    assert api.requests == 1


async def test_without_a_key_another_note_is_another_event(api: Api, start: Any) -> None:
    first, second = replace(ABOVE, key="", note="one"), replace(ABOVE, key="", note="two")
    await record(start(), first, first, second, second)
    assert api.stored() == [("one", 1), ("two", 1)]


async def test_a_restarted_process_does_not_write_an_event_that_is_stored(api: Api, start: Any) -> None:
    for _ in range(3):
        await record(start(), ABOVE, ABOVE)
    assert api.stored() == [(ABOVE.note, 1)]


@pytest.mark.parametrize(
    "other",
    [
        replace(ABOVE, subject="sidecar"),
        replace(ABOVE, reason=EventReason.GPU_RELEASED),
        replace(ABOVE, regarding=POD | {"uid": "u2"}),
    ],
)
async def test_another_container_reason_or_object_has_an_event_of_its_own(api: Api, start: Any, other: Event) -> None:
    await record(start(), ABOVE, other, ABOVE, other)
    assert [count for _, count in api.stored()] == [1, 1]


async def test_what_ended_and_came_back_counts_up_its_event(api: Api, start: Any) -> None:
    recorder = start()
    for _ in range(3):
        await record(recorder, ABOVE, ABOVE)
        recorder.resolve(POD, ABOVE.reason, ABOVE.subject)
    assert api.stored() == [(ABOVE.note, 3)]
    assert api.events[next(iter(api.events))]["series"]["lastObservedTime"].endswith("Z")


async def test_what_changes_and_changes_back_counts_up_both_events(api: Api, start: Any) -> None:
    recorder, below = start(), replace(ABOVE, key="below", note="is back below")
    await record(recorder, ABOVE, below, ABOVE, below, ABOVE)
    assert Counter(dict(api.stored())) == {ABOVE.note: 3, below.note: 2}


async def test_an_occurrence_is_counted_even_when_the_last_process_recorded_the_same(api: Api, start: Any) -> None:
    occurrence = replace(ABOVE, happened=True)
    await record(start(), occurrence)
    await record(start(), occurrence)
    assert api.stored() == [(ABOVE.note, 2)]


async def test_a_repetition_of_an_event_that_is_gone_by_age_is_written_anew(api: Api, start: Any) -> None:
    recorder = start()
    await record(recorder, ABOVE)
    api.events.clear()
    recorder.resolve(POD, ABOVE.reason, ABOVE.subject)
    await record(recorder, ABOVE)
    assert api.stored() == [(ABOVE.note, 1)]


async def test_an_event_that_could_not_be_written_is_written_when_it_is_recorded_again(api: Api, start: Any) -> None:
    recorder, api.broken = start(), True
    await record(recorder, ABOVE)
    api.broken = False
    await record(recorder, ABOVE, ABOVE)
    assert api.stored() == [(ABOVE.note, 1)]


async def test_an_object_that_flaps_costs_no_more_than_a_burst_and_then_one_event_in_five_minutes(api: Api) -> None:
    now = 0.0
    recorder = EventRecorder(api, "gpushare-agent", "agent-1", clock=lambda: now)
    for number in range(100):
        await record(recorder, replace(ABOVE, key=str(number)))
    assert len(api.events) == event_correlator.BURST
    await record(recorder, replace(ABOVE, reason=EventReason.GPU_RELEASED))
    assert len(api.events) == event_correlator.BURST + 1, "what is recorded often holds up nothing else"
    now = 2 * event_correlator.REFILL_SECONDS
    for number in range(100, 200):
        await record(recorder, replace(ABOVE, key=str(number)))
    assert len(api.events) == event_correlator.BURST + 3


async def test_what_is_remembered_is_bounded_and_what_is_forgotten_is_still_stored_once(
    api: Api,
) -> None:
    recorder = EventRecorder(api, "gpushare-agent", "agent-1", lambda: 0.0, EventCorrelator(topics=2))
    containers = [replace(ABOVE, subject=f"c{number}", regarding=POD | {"uid": f"u{number}"}) for number in range(4)]
    await record(recorder, *containers, *containers)
    assert [count for _, count in api.stored()] == [1] * 4


async def test_an_event_about_the_whole_cluster_stands_in_namespace_default(api: Api, start: Any) -> None:
    share = {"apiVersion": "gpushare.dev/v1alpha1", "kind": "GpuShare", "name": "inference", "uid": "u9"}
    await record(start(), replace(ABOVE, regarding=share))
    (event,) = api.events.values()
    assert event["metadata"]["namespace"] == "default"
    assert event["metadata"]["name"].startswith("inference.")


async def test_an_api_server_that_hangs_holds_up_nobody_and_piles_up_no_requests(api: Api, start: Any) -> None:
    never = asyncio.Event()

    async def hang(*_: Any, **__: Any) -> Object:
        await never.wait()
        return {}

    api.create = hang  # type: ignore[method-assign]
    recorder = start()
    for number in range(1000):
        recorder.record(replace(ABOVE, regarding=POD | {"uid": f"u{number}"}))
    assert recorder.requests_under_way == MAX_REQUESTS
    async with asyncio.timeout(5):
        await recorder.close()
    assert recorder.requests_under_way == 0


recorded = st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("xyz"), st.booleans(), st.booleans()), max_size=40)


@given(recorded)
def test_whatever_is_recorded_in_whatever_order_only_changes_are_written_and_counts_never_skip(
    recorded: list[tuple[str, str, bool, bool]],
) -> None:
    correlator, last, written = EventCorrelator(), dict[str, str | None](), Counter[tuple[str, str]]()
    for step, (subject, content, resolved, happened) in enumerate(recorded):
        if resolved:
            correlator.resolve(POD, ABOVE.reason, subject)
            last[subject] = None
        event = replace(ABOVE, subject=subject, key=content, happened=happened)
        # So much later that the rate limit never decides.
        result = correlator.correlate(event, step * event_correlator.REFILL_SECONDS)
        assert (result is not None) == (happened or last.get(subject) != content)
        if result is not None:
            written[subject, content] += 1
            assert result.count == written[subject, content]
        last[subject] = content
