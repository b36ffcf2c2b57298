"""Events: once per change, whatever loops and restarts do; what comes back counts up the series of its event."""

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
from gpushare.kube.event_recorder import AT_ONCE, Event, EventRecorder

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

    def seen(self) -> list[tuple[str, int]]:
        """(note, how often), as kubectl shows them."""
        return [(it["note"], it.get("series", {}).get("count", 1)) for it in self.events.values()]


@pytest.fixture
def api() -> Api:
    return Api()


@pytest.fixture
def start(api: Api) -> Callable[[], EventRecorder]:
    """Each call is a process of the agent; the clock stands still."""
    return lambda: EventRecorder(api, "gpushare-agent", "agent-1", clock=lambda: 0.0)


async def tell(announcer: EventRecorder, *news: Event) -> None:
    for one in news:
        announcer.tell(one)
        await announcer.flush()


async def test_a_loop_that_tells_the_same_for_ever_leaves_one_event_and_one_request(api: Api, start: Any) -> None:
    announcer = start()
    for gib in range(9, 30):
        await tell(announcer, replace(ABOVE, note=f"uses {gib} GiB of 8 GiB"))
    assert api.seen() == [("uses 9 GiB of 8 GiB", 1)]
    assert api.requests == 1


async def test_without_a_key_the_note_is_what_makes_it_news(api: Api, start: Any) -> None:
    first, second = replace(ABOVE, key="", note="one"), replace(ABOVE, key="", note="two")
    await tell(start(), first, first, second, second)
    assert api.seen() == [("one", 1), ("two", 1)]


async def test_a_restarted_process_does_not_tell_again_what_stands_there(api: Api, start: Any) -> None:
    for _ in range(3):
        await tell(start(), ABOVE, ABOVE)
    assert api.seen() == [(ABOVE.note, 1)]


@pytest.mark.parametrize(
    "other",
    [
        replace(ABOVE, subject="sidecar"),
        replace(ABOVE, reason=EventReason.GPU_RELEASED),
        replace(ABOVE, regarding=POD | {"uid": "u2"}),
    ],
)
async def test_another_container_reason_or_object_is_told_of_by_itself(api: Api, start: Any, other: Event) -> None:
    await tell(start(), ABOVE, other, ABOVE, other)
    assert [count for _, count in api.seen()] == [1, 1]


async def test_what_ended_and_came_back_counts_up_its_event(api: Api, start: Any) -> None:
    announcer = start()
    for _ in range(3):
        await tell(announcer, ABOVE, ABOVE)
        announcer.over(POD, ABOVE.reason, ABOVE.subject)
    assert api.seen() == [(ABOVE.note, 3)]
    assert api.events[next(iter(api.events))]["series"]["lastObservedTime"].endswith("Z")


async def test_what_changes_and_changes_back_counts_up_both_events(api: Api, start: Any) -> None:
    announcer, below = start(), replace(ABOVE, key="below", note="is back below")
    await tell(announcer, ABOVE, below, ABOVE, below, ABOVE)
    assert Counter(dict(api.seen())) == {ABOVE.note: 3, below.note: 2}


async def test_a_change_that_was_seen_is_counted_even_when_the_last_process_told_the_same(api: Api, start: Any) -> None:
    seen = replace(ABOVE, happened=True)
    await tell(start(), seen)
    await tell(start(), seen)
    assert api.seen() == [(ABOVE.note, 2)]


async def test_a_repetition_of_an_event_that_is_gone_by_age_is_written_anew(api: Api, start: Any) -> None:
    announcer = start()
    await tell(announcer, ABOVE)
    api.events.clear()
    announcer.over(POD, ABOVE.reason, ABOVE.subject)
    await tell(announcer, ABOVE)
    assert api.seen() == [(ABOVE.note, 1)]


async def test_an_event_that_could_not_be_written_is_written_when_it_is_told_again(api: Api, start: Any) -> None:
    announcer, api.broken = start(), True
    await tell(announcer, ABOVE)
    api.broken = False
    await tell(announcer, ABOVE, ABOVE)
    assert api.seen() == [(ABOVE.note, 1)]


async def test_an_object_that_flaps_costs_no_more_than_a_burst_and_then_one_event_in_five_minutes(api: Api) -> None:
    now = 0.0
    announcer = EventRecorder(api, "gpushare-agent", "agent-1", clock=lambda: now)
    for number in range(100):
        await tell(announcer, replace(ABOVE, key=str(number)))
    assert len(api.events) == event_correlator.BURST
    await tell(announcer, replace(ABOVE, reason=EventReason.GPU_RELEASED))
    assert len(api.events) == event_correlator.BURST + 1, "what is told often holds up nothing else"
    now = 2 * event_correlator.REFILL_SECONDS
    for number in range(100, 200):
        await tell(announcer, replace(ABOVE, key=str(number)))
    assert len(api.events) == event_correlator.BURST + 3


async def test_what_is_remembered_is_bounded_and_what_is_forgotten_is_still_told_once(
    api: Api, start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_correlator, "SUBJECTS", 2)
    announcer = start()
    containers = [replace(ABOVE, subject=f"c{number}", regarding=POD | {"uid": f"u{number}"}) for number in range(4)]
    await tell(announcer, *containers, *containers)
    assert [count for _, count in api.seen()] == [1] * 4


async def test_an_event_about_the_whole_cluster_stands_in_namespace_default(api: Api, start: Any) -> None:
    share = {"apiVersion": "gpushare.dev/v1alpha1", "kind": "GpuShare", "name": "inference", "uid": "u9"}
    await tell(start(), replace(ABOVE, regarding=share))
    (event,) = api.events.values()
    assert event["metadata"]["namespace"] == "default"
    assert event["metadata"]["name"].startswith("inference.")


async def test_an_api_server_that_hangs_holds_up_nobody_and_piles_up_no_requests(api: Api, start: Any) -> None:
    never = asyncio.Event()

    async def hang(*_: Any, **__: Any) -> Object:
        await never.wait()
        return {}

    api.create = hang  # type: ignore[method-assign]
    announcer = start()
    for number in range(1000):
        announcer.tell(replace(ABOVE, regarding=POD | {"uid": f"u{number}"}))
    assert len(announcer._requests) == AT_ONCE
    async with asyncio.timeout(5):
        await announcer.close()
    assert not announcer._requests


tellings = st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("xyz"), st.booleans(), st.booleans()), max_size=40)


@given(tellings)
def test_whatever_is_told_in_whatever_order_only_news_is_written_and_counts_never_skip(
    tellings: list[tuple[str, str, bool, bool]],
) -> None:
    memory, last, told = EventCorrelator(), dict[str, str | None](), Counter[tuple[str, str]]()
    for step, (subject, content, over, happened) in enumerate(tellings):
        if over:
            memory.over(POD, ABOVE.reason, subject)
            last[subject] = None
        news = replace(ABOVE, subject=subject, key=content, happened=happened)
        # So much later that the budget is never what decides.
        turn = memory.turn(news, step * event_correlator.REFILL_SECONDS)
        assert (turn is not None) == (happened or last.get(subject) != content)
        if turn is not None:
            told[subject, content] += 1
            assert turn.times == told[subject, content]
        last[subject] = content
