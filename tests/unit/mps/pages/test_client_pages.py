"""How long a protected process is busy, and what pages of many processes cost, by a clock of the test's own."""

import fcntl
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare.mps.pages.board import Board
from gpushare.mps.pages.client_pages import BUSY_READINGS, MOST_READ, MOST_SETS, ClientPages, Handed
from gpushare.mps.pages.layout import MOST_PROTECTED, WORD_AT, ClassNumber
from gpushare.mps.pages.page import F_SEAL_FUTURE_WRITE
from gpushare.mps.wire import MAX_ACTIVE, ClientGrant
from tests.unit.clock import Clock
from tests.unit.mps.broker.fake_daemon import open_descriptors
from tests.unit.mps.broker.serving.paged_client import LAST_LAUNCH_AT

GRANTS = {
    name: ClientGrant(threads=50, memory_mib=1024, processes=300, client_class=name)
    for name in ("Protected", "BestEffort", "Normal")
}
CONTAINER = ("pod", "app")


@pytest.fixture
def clock() -> Clock:
    return Clock(1000.0)


@pytest.fixture
def pages(tmp_path: Path, clock: Clock) -> Iterator[ClientPages]:
    pages = ClientPages(clock, lambda: round(clock() * 1e9))
    pages.board = Board(tmp_path / "board", broker=1)
    yield pages
    pages.close()


def let_go(handed: Handed) -> None:
    for descriptor in handed.own:
        os.close(descriptor)


def protected(pages: ClientPages, pid: int) -> mmap.mmap:
    """The busy page of a process that is protected now."""
    handed = pages.give((pid, 1), CONTAINER, GRANTS["Protected"])
    busy = mmap.mmap(handed.own[1], 4096)
    fcntl.fcntl(handed.own[1], fcntl.F_ADD_SEALS, F_SEAL_FUTURE_WRITE)
    let_go(handed)
    pages.mapped((pid, 1))
    return busy


@pytest.mark.parametrize(
    ("words", "share"),
    [
        ([1], 0.0),
        ([1, 3], 1.0),
        ([0], 0.0),
        ([0, 2, 4], 0.0),
        ([1, 3, 4, 6], 0.5),
    ],
    ids=["stopped while busy", "renews its word", "idle", "counts while idle", "half the time"],
)
def test_how_much_of_a_minute_a_process_was_busy(
    pages: ClientPages, clock: Clock, words: list[int], share: float
) -> None:
    busy = protected(pages, 1)
    for second in range(BUSY_READINGS + 4):
        busy[WORD_AT] = words[second % len(words)]
        clock.now += 1.0
        pages.read()
        if second < BUSY_READINGS - 1:
            assert pages.activity()[0].busy_share is None
    [told] = pages.activity()
    assert told.busy_share == pytest.approx(share, abs=0.02)


def test_of_many_processes_as_many_are_read_in_a_second_as_are_told(pages: ClientPages, clock: Clock) -> None:
    maps = []
    for pid in range(MOST_SETS + 10):
        handed = pages.give((pid, 1), CONTAINER, GRANTS["Normal"])
        assert (handed.answer.client_class is ClassNumber.NONE) is (pid >= MOST_SETS)
        maps += [mmap.mmap(descriptor, 4096) for descriptor in handed.own]
        let_go(handed)
    maps[MOST_SETS - 1][LAST_LAUNCH_AT : LAST_LAUNCH_AT + 8] = (10**12).to_bytes(8, "little")
    for second in range(MOST_SETS // MOST_READ):
        assert len(pages.activity()) == (MAX_ACTIVE if second else 0)
        assert not second or pages.activity()[0].pid != MOST_SETS - 1
        clock.now += 1.0
        pages.read()
    assert pages.activity()[0].pid == MOST_SETS - 1, "who launched last is told first"


def test_of_too_many_protected_processes_the_first_are_shown(pages: ClientPages, clock: Clock) -> None:
    kept = []
    for pid in range(MOST_PROTECTED + 3):
        kept.append(protected(pages, pid))
        clock.now += 1.0
    handed = pages.give((99, 1), CONTAINER, GRANTS["BestEffort"])
    let_go(handed)
    assert (handed.answer.protected, len(handed.others)) == (MOST_PROTECTED, MOST_PROTECTED)
    pages.keep(lambda process: process[0] >= 5)
    assert len(pages.show_busy((99, 1), GRANTS["BestEffort"]).others) == MOST_PROTECTED - 2


def test_pages_of_those_that_have_ended_are_closed(pages: ClientPages) -> None:
    before = open_descriptors()
    for pid in range(50):
        let_go(pages.give((pid, 1), ("pod", str(pid)), GRANTS["Protected"]))
    pages.keep(lambda _: False)
    assert open_descriptors() == before
