"""Whether an event is news: what was told last of each subject, how often, and how much an object may still say. Pure.

Bounded: the least recent are forgotten first. What is forgotten may be told once more; its event's name, made of what
it says, then still keeps it from standing there twice.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Literal

from gpushare.api.conditions import EventReason, ShareReason
from gpushare.kube.client import Object

SUBJECTS = 4096
CONTENTS = 8
"""How many things told of one subject are still known when they come back."""
BURST = 25.0
REFILL_SECONDS = 300.0
"""Of an object, for one reason, 25 events come at once, then one in five minutes: the figures of client-go's filter."""

Topic = tuple[str, str, str]
"""(object, reason, subject)."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event. `regarding`: from events.reference; `kind`, `reason`, `action`, `note`: as in events.k8s.io/v1.

    `subject`: what of the object it is about where there may be several, such as a container. `key`: what makes it
    news; the note where that is empty, so a note with a figure that moves needs a key. `happened`: True where the
    caller saw the change itself, False where a loop tells how things are.
    """

    regarding: Object
    kind: Literal["Normal", "Warning"]
    reason: EventReason | ShareReason
    action: str
    note: str
    subject: str = ""
    key: str = ""
    happened: bool = False

    @property
    def topic(self) -> Topic:
        return _topic(self.regarding, self.reason, self.subject)

    @property
    def content(self) -> str:
        return self.key or self.note


@dataclass(slots=True)
class _Told:
    """`last`: the content told last, None once it is over. `counts`: how often each content was told."""

    last: str | None
    counts: dict[str, int]


@dataclass(frozen=True, slots=True)
class Delivery:
    """An event to be written. `times`: how often this process tells it now.

    `repeats`: a change is known to lie between this and what an equal event told before, so that one is counted up.
    """

    times: int
    repeats: bool


class EventCorrelator:
    def __init__(self) -> None:
        self._told: OrderedDict[Topic, _Told] = OrderedDict()
        self._budgets: OrderedDict[tuple[str, str], tuple[float, float]] = OrderedDict()

    def turn(self, news: Event, now: float) -> Delivery | None:
        """None: it is no news, or the object has said too much."""
        told = self._told.get(news.topic)
        if told is not None:
            self._told.move_to_end(news.topic)
            if told.last == news.content and not news.happened:
                return None
        if not self._spend(news.topic[:2], now):
            return None
        repeats = told is not None or news.happened
        told = self._told.setdefault(news.topic, _Told(None, {}))
        times = told.counts.get(news.content, 0) + 1
        told.counts = {**dict(list(told.counts.items())[-CONTENTS:]), news.content: times}
        told.last = news.content
        while len(self._told) > SUBJECTS:
            self._told.popitem(last=False)
        return Delivery(times, repeats)

    def over(self, regarding: Object, reason: EventReason | ShareReason, subject: str) -> None:
        told = self._told.get(_topic(regarding, reason, subject))
        if told is not None:
            told.last = None

    def failed(self, news: Event) -> None:
        """It was not written: told again it is news, and not a repetition."""
        told = self._told.get(news.topic)
        if told is None:
            return
        told.counts[news.content] = told.counts.get(news.content, 1) - 1
        if told.last == news.content:
            told.last = None

    def _spend(self, about: tuple[str, str], now: float) -> bool:
        left, at = self._budgets.get(about, (BURST, now))
        left = min(BURST, left + (now - at) / REFILL_SECONDS)
        allowed = left >= 1.0
        self._budgets[about] = (left - 1.0 if allowed else left, now)
        self._budgets.move_to_end(about)
        while len(self._budgets) > SUBJECTS:
            self._budgets.popitem(last=False)
        return allowed


def _topic(regarding: Object, reason: EventReason | ShareReason, subject: str) -> Topic:
    about = regarding.get("uid") or f"{regarding['kind']}/{regarding.get('namespace', '')}/{regarding['name']}"
    return about, reason, subject
