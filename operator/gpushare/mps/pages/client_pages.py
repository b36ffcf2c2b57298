"""Which processes of one GPU have pages, who may read whose, and what the pages say.

Guarantees: nothing here waits for anybody. A process has one set of pages, in memory alone; a busy page is shown to
others once its process has sealed it, and as long as that one lives. Sets that somebody keeps after they were replaced,
or after their process has ended, count against their container, which gets no others then: they are memory of ours.
"""

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from gpushare.api.client_class import ClientClass
from gpushare.messages.log_on_change import LogOnChange
from gpushare.mps.identity import Container, Identity
from gpushare.mps.pages.activity import SECOND, activity, fault
from gpushare.mps.pages.board import Board
from gpushare.mps.pages.layout import (
    ACTIVITY_MAGIC,
    BUSY_MAGIC,
    MOST_PROTECTED,
    ActivityPage,
    ClassNumber,
    PagesAnswer,
    activity_page,
    busy_word,
    class_number,
)
from gpushare.mps.pages.page import Page
from gpushare.mps.wire import MAX_ACTIVE, MAX_GAVE_WAY_TO, ClientActivity, ClientGrant, GaveWayTo
from gpushare.process.procfs import TICKS_PER_SECOND

LOG = logging.getLogger(__name__)
FLOOR_PERCENT = 5
"""Of the time, which best effort always has."""
MOST_SETS, MOST_KEPT = 256, 16
"""Of processes of one GPU; and of those that one container keeps beyond."""
AGAIN_SECONDS = 1.0
"""A process gets no new pages sooner."""
READ_SECONDS = 1.0
MOST_READ = MAX_ACTIVE
"""Processes whose pages are read at a time; with more of them each is read less often."""
BUSY_READINGS = 60
MOST_REMEMBERED = 64
"""Protected processes to which one gave way; those that have ended included."""
ASKS_WITHIN_SECONDS = 30.0
"""A process asks for its pages in the call by which it attaches, cuInit."""


@dataclass(frozen=True, slots=True)
class Handed:
    """An answer with its descriptors: `own`, which whoever sends them closes, and those of others to read."""

    answer: PagesAnswer
    own: tuple[int, ...] = ()
    others: tuple[int, ...] = ()


@dataclass(slots=True, eq=False)
class _Set:
    """The pages of one process. `given_at`: CLOCK_BOOTTIME seconds. `told_of`: the protected processes whose busy pages
    it was handed last, in that order. `gave_way_to`: nanoseconds; `attributed`: what of it each place of that order had
    at the last look. `page`: the last reading without a fault. `shows_busy`: its busy page is sealed.
    """

    container: Container
    client_class: str
    given_at: float
    activity: Page
    busy: Page | None
    shows_busy: bool = False
    told_of: tuple[Identity, ...] = ()
    gave_way_to: dict[Identity, int] = field(default_factory=dict)
    attributed: tuple[int, ...] = (0,) * MOST_PROTECTED
    page: ActivityPage | None = None
    fault: str = ""
    read: ClientActivity | None = None
    word: int | None = None
    was_busy: "deque[bool]" = field(default_factory=lambda: deque(maxlen=BUSY_READINGS))

    @property
    def pages(self) -> tuple[Page, ...]:
        return (self.activity,) if self.busy is None else (self.activity, self.busy)

    def close(self) -> None:
        for page in self.pages:
            page.close()


class ClientPages:
    """`clock`: CLOCK_BOOTTIME seconds; `monotonic`: the nanoseconds of CLOCK_MONOTONIC, which pages have."""

    def __init__(self, clock: Callable[[], float], monotonic: Callable[[], int]) -> None:
        self.board: Board | None = None
        """None: there is none yet, and nobody gets pages."""
        self._clock = clock
        self._monotonic = monotonic
        self._sets: dict[Identity, _Set] = {}
        """Who was read least lately comes first."""
        self._kept: dict[Container, list[_Set]] = {}
        self._expected: dict[Identity, float] = {}
        """Until when best-effort processes that attached are to have asked, in CLOCK_BOOTTIME seconds."""
        self._read_at = 0.0
        self._problems = LogOnChange(LOG)

    # Who has pages

    def attached(self, process: Identity, grant: ClientGrant) -> None:
        """The process has attached for the first time."""
        if grant.client_class == ClientClass.BEST_EFFORT and process not in self._sets:
            self._expected.setdefault(process, self._clock() + ASKS_WITHIN_SECONDS)

    def restore(self, without_pages: Iterable[Identity]) -> None:
        """Those that had not asked an earlier broker in time. All others may have, and are not to ask before their next
        launch.
        """
        self._expected.update(dict.fromkeys(without_pages, 0.0))

    def late(self, listed: Collection[Identity]) -> list[Identity]:
        """Best-effort processes among these that have not asked in time."""
        now = self._clock()
        return sorted(process for process, until in self._expected.items() if now > until and process in listed)

    def keep(self, lives: Callable[[Identity], bool]) -> None:
        """Forgets those that have ended."""
        self._expected = {process: until for process, until in self._expected.items() if lives(process)}
        for process in [process for process in self._sets if not lives(process)]:
            self._drop(process)
        for container in list(self._kept):
            self._forget_free(container)

    def close(self) -> None:
        """Nobody has pages any more, as far as this broker knows."""
        for known in (*self._sets.values(), *(item for kept in self._kept.values() for item in kept)):
            known.close()
        self._sets, self._kept = {}, {}

    # What they are answered

    def give(self, process: Identity, container: Container, grant: ClientGrant) -> Handed:
        """New pages, in the place of its earlier ones."""
        self._expected.pop(process, None)
        number, before = class_number(grant.client_class), self._sets.get(process)
        too_soon = before is not None and self._clock() - before.given_at < AGAIN_SECONDS
        if number is ClassNumber.NONE or too_soon or not self._has_room(process, container):
            return Handed(PagesAnswer())
        try:
            given = self._new_set(container, grant)
        except OSError as error:
            self._problems.log("no pages can be made: %s", error.strerror or error, key="make")
            return Handed(PagesAnswer())
        self._problems.clear("make")
        if before is not None:
            self._attribute(before)
            given.gave_way_to, given.attributed = before.gave_way_to, before.attributed
            self._drop(process)
        self._sets[process] = given
        return self._handed(given, grant, tuple(page.take_to_write() for page in given.pages))

    def show_busy(self, process: Identity, grant: ClientGrant) -> Handed:
        """The busy pages, for a best-effort process that has its own."""
        known = self._sets.get(process)
        if known is None or class_number(grant.client_class) is not ClassNumber.BEST_EFFORT:
            return Handed(PagesAnswer())
        self._attribute(known)
        return self._handed(known, grant, ())

    def mapped(self, process: Identity) -> None:
        """The process says that it has mapped its latest pages, and sealed its busy page: which is looked at."""
        known = self._sets.get(process)
        if known is None:
            return
        known.page = activity_page(known.activity.content())
        if known.busy is not None and not known.shows_busy and known.busy.is_sealed():
            known.shows_busy = True
            self._change()

    def _handed(self, known: _Set, grant: ClientGrant, own: tuple[int, ...]) -> Handed:
        board, number = self.board, class_number(grant.client_class)
        assert board is not None  # noqa: S101 - nobody gets pages before
        protected = self._protected() if number is ClassNumber.BEST_EFFORT else {}
        known.told_of = tuple(protected)
        answer = PagesAnswer(
            client_class=number,
            sm_percent=grant.sm_percent,
            floor_percent=FLOOR_PERCENT,
            activity=min(1, len(own)),
            own_busy=max(0, len(own) - 1),
            protected=len(protected),
            broker=board.broker,
            generation=board.generation,
        )
        return Handed(answer, own, tuple(protected.values()))

    def _protected(self) -> dict[Identity, int]:
        """The descriptors of the busy pages; of too many those that have been there for longest."""
        shown = [
            (process, known) for process, known in self._sets.items() if known.shows_busy and known.busy is not None
        ]
        shown.sort(key=lambda item: item[1].given_at)
        return {process: known.busy.to_read for process, known in shown[:MOST_PROTECTED] if known.busy is not None}

    def _new_set(self, container: Container, grant: ClientGrant) -> _Set:
        own = Page("gpushare-activity", ACTIVITY_MAGIC)
        try:
            protected = grant.client_class == ClientClass.PROTECTED
            busy = Page("gpushare-busy", BUSY_MAGIC, shared=True) if protected else None
        except OSError:
            own.close()
            raise
        return _Set(container, grant.client_class, self._clock(), own, busy)

    def _has_room(self, process: Identity, container: Container) -> bool:
        if self.board is None or (process not in self._sets and len(self._sets) >= MOST_SETS):
            return False
        self._forget_free(container)
        return len(self._kept.get(container, ())) < MOST_KEPT

    def _drop(self, process: Identity) -> None:
        dropped = self._sets.pop(process)
        self._kept.setdefault(dropped.container, []).append(dropped)
        self._forget_free(dropped.container)
        if sum(map(len, self._kept.values())) > MOST_SETS:  # handed on from pod to pod, perhaps
            self._kept[next(iter(self._kept))].pop(0).close()
        if dropped.shows_busy:
            self._change()

    def _forget_free(self, container: Container) -> None:
        """Closes the sets that were dropped and that nobody keeps."""
        dropped = self._kept.pop(container, [])
        free = [item for item in dropped if not any(page.is_kept() for page in item.pages)]
        for item in free:
            item.close()
        if len(free) < len(dropped):
            self._kept[container] = [item for item in dropped if item not in free]

    def _change(self) -> None:
        if self.board is not None:
            self.board.change()

    # What they say

    def read(self) -> None:
        """Reads the pages, once in READ_SECONDS."""
        now = self._clock()
        if now - self._read_at < READ_SECONDS:
            return
        self._read_at = now
        for process in list(self._sets)[:MOST_READ]:
            known = self._sets[process] = self._sets.pop(process)
            self._read_busy(known)
            known.read = self._read_activity(process, known, now)

    def activity(self) -> list[ClientActivity]:
        """Of those that launched last."""
        read = [known.read for known in self._sets.values() if known.read is not None]
        return sorted(read, key=lambda item: item.last_launch or 0.0, reverse=True)[:MAX_ACTIVE]

    def _read_busy(self, known: _Set) -> None:
        """A word that has not changed since the last reading is of a process that does nothing."""
        if known.busy is None or not known.shows_busy:
            return
        word, before = busy_word(known.busy.content()), known.word
        known.word = word
        known.was_busy.append(word is not None and word != before and bool(word & 1))

    def _read_activity(self, process: Identity, known: _Set, now: float) -> ClientActivity:
        (pid, started), (pod_uid, container) = process, known.container
        moment = self._monotonic()
        age = max(0, round((now - started / TICKS_PER_SECOND + 1) * SECOND))
        page, before = self._attribute(known), known.page
        known.fault = known.fault or fault(page, before, moment, age)
        share = sum(known.was_busy) / BUSY_READINGS if len(known.was_busy) == BUSY_READINGS else None
        read = ClientActivity(
            pid=pid,
            started=started,
            pod_uid=pod_uid,
            container=container,
            client_class=known.client_class,
            sealed=known.shows_busy,
            busy_share=share,
            fault=known.fault[:512],
        )
        if page is None or known.fault:
            return read
        known.page = page
        said = activity(page, moment, age)
        return replace(
            read,
            **said.counts,
            last_launch=None if said.idle is None else now - said.idle,
            active_seconds=said.active,
            gave_way_seconds=said.gave_way,
            gave_way_to=[
                GaveWayTo(pid=pid, started=started, seconds=spent / SECOND)
                for (pid, started), spent in _most(known.gave_way_to, MAX_GAVE_WAY_TO)
            ],
            longest=list(said.longest),
        )

    def _attribute(self, known: _Set) -> ActivityPage | None:
        """What it gave way since the last reading goes to whom it was told of. Returns what its page says now."""
        page = activity_page(known.activity.content())
        if page is None:
            return None
        for protected, was, value in zip(known.told_of, known.attributed, page.gave_way_to, strict=False):
            if value > was:  # less: it counts anew, with another program
                known.gave_way_to[protected] = known.gave_way_to.get(protected, 0) + value - was
        known.attributed = page.gave_way_to
        if len(known.gave_way_to) > MOST_REMEMBERED:
            known.gave_way_to = dict(_most(known.gave_way_to, MOST_REMEMBERED // 2))
        return page


def _most(gave_way_to: Mapping[Identity, int], count: int) -> list[tuple[Identity, int]]:
    return sorted(gave_way_to.items(), key=lambda item: item[1], reverse=True)[:count]
