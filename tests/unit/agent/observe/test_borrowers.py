"""Which borrowers the API shows: who lasts, with the figures of the first time, in the order in which they go."""

from dataclasses import replace

from gpushare.agent.observe.borrowing import BorrowerList
from gpushare.agent.observe.usage import Reading, Usage
from gpushare.api.gpunode import Borrower
from gpushare.grant.model import Grant
from tests.unit.agent.observed_pods import UUID, process, uid, usage

WALL = "2026-01-01T00:00:00Z"
GRANT = Grant("a", 25, 8192, 1, burst_mib=16384)
CLEAR_SECONDS = 10.0


def client(number: int, memory_mib: int, priority: int = 0) -> Usage:
    listed = process(number, memory_mib)
    return usage(listed, pod_uid=uid(number), pod=f"pod-{number}", grant=GRANT, priority=priority)


class Loop:
    """Readings two seconds apart."""

    def __init__(self, *before: Borrower) -> None:
        self.now = 100.0
        self.list = BorrowerList(before, self.now, CLEAR_SECONDS)

    def read(self, *usages: Usage, times: int = 1) -> list[Borrower]:
        for _ in range(times):
            self.now += 2.0
            self.list.update(Reading(UUID, "a", self.now, 143155, usages), WALL)
        return self.list.listed({})


def test_who_borrows_in_two_readings_is_listed_with_all_figures() -> None:
    loop = Loop()
    assert loop.read(client(1, 20_000)) == []
    (borrower,) = loop.read(client(1, 20_000))
    assert (borrower.namespace, borrower.pod, borrower.container, borrower.share) == ("team", "pod-1", "app", "a")
    assert (borrower.reserved_mib, borrower.limit_mib, borrower.observed_mib) == (8192, 24576, 20_000)
    assert (borrower.since, borrower.ends_at) == (WALL, None)


def test_one_that_borrows_every_other_reading_is_not_listed() -> None:
    loop = Loop()
    for _ in range(5):
        assert loop.read(client(1, 20_000)) == []
        assert loop.read(client(1, 4000)) == []


def test_figures_that_move_change_no_entry() -> None:
    loop = Loop()
    entries = loop.read(client(1, 20_000), times=2)
    assert loop.read(client(1, 23_000)) == entries


def test_one_that_borrows_no_more_leaves_the_list_after_a_while() -> None:
    loop = Loop()
    loop.read(client(1, 20_000), times=2)
    assert len(loop.read(client(1, 4000), times=4)) == 1
    assert loop.read(client(1, 4000), times=2) == []


def test_a_restarted_agent_goes_on_with_the_entries_of_the_one_before() -> None:
    (borrower,) = Loop().read(client(1, 20_000), times=2)
    earlier = borrower.model_copy(update={"since": "2025-12-31T00:00:00Z"})
    assert Loop(earlier).read(client(1, 21_000)) == [earlier]


def test_borrowers_are_listed_in_their_order_with_the_time_of_the_end() -> None:
    loop = Loop()
    seen = [client(1, 12_000), client(2, 20_000), client(3, 23_000, priority=10)]
    assert [entry.pod for entry in loop.read(*seen, times=2)] == ["pod-2", "pod-1", "pod-3"]
    first, *others = loop.list.listed({(UUID, uid(2), "app"): WALL})
    assert (first.ends_at, [entry.ends_at for entry in others]) == (WALL, [None, None])


def test_borrowers_of_a_gpu_that_is_given_back_are_forgotten() -> None:
    loop = Loop()
    loop.read(client(1, 20_000), times=2)
    loop.list.keep({"GPU-other"})
    assert loop.list.listed({}) == []
    assert loop.read(replace(client(1, 20_000))) == []
