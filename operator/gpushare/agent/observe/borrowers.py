"""Which borrowers the API shows, and since when. Pure: times are handed in.

Guarantees: one reading alone lists no borrower; a GPU without a new reading keeps its borrowers; a container that goes
on borrowing keeps the figures that it was listed with, so a borrower that stays costs no write.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from gpushare.agent.observe.borrowing import Borrowing, borrowings
from gpushare.agent.observe.usage import Reading
from gpushare.api.gpunode import MAX_BORROWERS, Borrower, Uuid

Place = tuple[Uuid, str, str]
"""A triple of (GPU, pod uid, container): the same after a restart of the agent."""


@dataclass(frozen=True, slots=True)
class _Sighting:
    """`last`: when the reading was taken that showed it last. `confirmed` None: one reading alone shows it."""

    last: float
    confirmed: Borrower | None


class BorrowerList:
    def __init__(self, before: Sequence[Borrower], now: float, clear_seconds: float) -> None:
        """`before`: those of an earlier agent. `now`: on the clock of `taken_at`. `clear_seconds`: one that was not
        seen to borrow for so long is no borrower any more.
        """
        self._cases = {(listed.uuid, listed.pod_uid, listed.container): _Sighting(now, listed) for listed in before}
        self._clear_seconds = clear_seconds

    def update(self, reading: Reading, wall: str) -> None:
        """Takes a new reading. `wall`: RFC 3339, for borrowers that it confirms."""
        uuid, now = reading.uuid, reading.taken_at
        seen = {}
        for borrowing in borrowings(reading):
            place = (uuid, borrowing.usage.pod_uid, borrowing.usage.container)
            known = self._cases.get(place)
            confirmed = known.confirmed if known is not None else None
            if confirmed is None and known is not None:  # it is known from the reading before
                confirmed = _borrower(borrowing, wall)
            seen[place] = _Sighting(now, confirmed)
        kept = {
            place: case
            for place, case in self._cases.items()
            if place[0] != uuid or (case.confirmed is not None and now - case.last < self._clear_seconds)
        }
        self._cases = kept | seen

    def keep(self, taken: Collection[Uuid]) -> None:
        """Forgets those of other GPUs."""
        self._cases = {place: case for place, case in self._cases.items() if place[0] in taken}

    def listed(self, ends_at: Mapping[Place, str]) -> list[Borrower]:
        """The borrowers for the status, in the order in which they go. `ends_at`: when those with notice are ended."""
        confirmed = [
            case.confirmed.model_copy(update={"ends_at": ends_at.get(place)})
            for place, case in self._cases.items()
            if case.confirmed is not None
        ]
        return sorted(confirmed, key=_order)[:MAX_BORROWERS]


def _order(borrower: Borrower) -> tuple[object, ...]:
    return (
        borrower.priority,
        borrower.reserved_mib - borrower.observed_mib,
        borrower.uuid,
        borrower.namespace,
        borrower.pod,
        borrower.container,
    )


def _borrower(borrowing: Borrowing, wall: str) -> Borrower:
    usage, grant = borrowing.usage, borrowing.usage.grant
    return Borrower(
        uuid=usage.uuid,
        share=usage.share,
        namespace=usage.namespace,
        pod=usage.pod,
        pod_uid=usage.pod_uid,
        container=usage.container,
        priority=usage.priority,
        reserved_mib=grant.memory_mib if grant is not None else 0,
        limit_mib=grant.limit_mib if grant is not None else 0,
        observed_mib=usage.memory_mib,
        since=wall,
    )
