"""Which events are written, and which count up one that was written before. Pure: times are handed in.

Guarantees: an event that equals the last one of its topic passes only if it `happened` anew or the topic was resolved
in between; an object passes at most BURST events of one reason at once. Memory is bounded: the least recently recorded
topics are forgotten first. A forgotten event may pass once more; its name, made of its content, then keeps the API
server from storing it twice.
"""

from collections import OrderedDict
from dataclasses import dataclass

from gpushare.kube.events.event import Event, Reason, Topic, topic
from gpushare.kube.resources import Object

TOPICS = 4096
CONTENTS = 8
"""How many contents of one topic are still known when they come back."""
BURST = 25.0
REFILL_SECONDS = 300.0
"""25 events of one object and reason pass at once, then one in five minutes: client-go's spam filter has the same."""


@dataclass(slots=True)
class _Recorded:
    """`last`: the content recorded last; None once it was resolved. `counts`: how often each content was recorded."""

    last: str | None
    counts: dict[str, int]


@dataclass(frozen=True, slots=True)
class CorrelateResult:
    """An event to be written. `count`: how often this process has recorded it, this time included.

    `repeats`: an equal event of an earlier process is another occurrence, so it is counted up.
    """

    count: int
    repeats: bool


class EventCorrelator:
    def __init__(self, topics: int = TOPICS) -> None:
        """`topics`: how many are remembered."""
        self._topics = topics
        self._recorded: OrderedDict[Topic, _Recorded] = OrderedDict()
        self._tokens: OrderedDict[tuple[str, str], tuple[float, float]] = OrderedDict()
        """How many events each object and reason may still record, and when that was counted."""

    def correlate(self, event: Event, now: float) -> CorrelateResult | None:
        """How the event is to be written; None: not at all. `now`: seconds, monotonic."""
        recorded = self._recorded.get(event.topic)
        if recorded is not None:
            self._recorded.move_to_end(event.topic)
            if recorded.last == event.content and not event.happened:
                return None
        if not self._take_token(event.topic[:2], now):
            return None
        repeats = recorded is not None or event.happened
        recorded = self._recorded.setdefault(event.topic, _Recorded(None, {}))
        count = recorded.counts.get(event.content, 0) + 1
        recorded.counts = {**dict(list(recorded.counts.items())[-CONTENTS:]), event.content: count}
        recorded.last = event.content
        while len(self._recorded) > self._topics:
            self._recorded.popitem(last=False)
        return CorrelateResult(count, repeats)

    def resolve(self, regarding: Object, reason: Reason, subject: str) -> None:
        """What the last event of this topic reported has ended: the same event is a new occurrence."""
        recorded = self._recorded.get(topic(regarding, reason, subject))
        if recorded is not None:
            recorded.last = None

    def failed(self, event: Event) -> None:
        """The event was not written: recorded again it passes, and does not count as a repetition."""
        recorded = self._recorded.get(event.topic)
        if recorded is None:
            return
        recorded.counts[event.content] = recorded.counts.get(event.content, 1) - 1
        if recorded.last == event.content:
            recorded.last = None

    def _take_token(self, about: tuple[str, str], now: float) -> bool:
        left, at = self._tokens.get(about, (BURST, now))
        left = min(BURST, left + (now - at) / REFILL_SECONDS)
        allowed = left >= 1.0
        self._tokens[about] = (left - 1.0 if allowed else left, now)
        self._tokens.move_to_end(about)
        while len(self._tokens) > self._topics:
            self._tokens.popitem(last=False)
        return allowed
