"""What becomes of a watch's events between aiohttp and who reads them."""

import asyncio
import json
from pathlib import Path

import pytest

from tests.faults.injected import faultpoints
from tests.faults.injected.faultpoints import GONE, Points, Watches

FIRST, SECOND, BOOKMARK = (json.dumps({"type": kind}).encode() + b"\n" for kind in ("ADDED", "MODIFIED", "BOOKMARK"))
LATE, PATIENCE = 0.1, 20.0
"""Seconds."""


def readers() -> type:
    """A class like aiohttp's, anew for each test, since it is instrumented for good."""

    class Reader:
        def __init__(self) -> None:
            self.heard, self.changed = b"", asyncio.Event()

        def feed_data(self, data: bytes) -> bool:
            self.heard += data
            self.changed.set()
            return False

        def feed_eof(self) -> None:
            self.heard += b"end"

        async def hears(self, wanted: bytes) -> None:
            async with asyncio.timeout(PATIENCE):
                while self.heard != wanted:
                    self.changed.clear()
                    await self.changed.wait()

    return Reader


def watch(tmp_path: Path, how: str) -> tuple[faultpoints.Watches, type]:
    kind = readers()
    if how:
        order = {"point": "agent: watch gpunodes", "when": how, "skip": 0}
        (tmp_path / "order-1.json").write_text(json.dumps(order))
    return Watches(kind, Points(tmp_path, "agent"), LATE), kind


@pytest.mark.parametrize(("how", "heard"), [("", FIRST + SECOND), ("twice", FIRST + FIRST + SECOND)])
async def test_events_pass_in_their_pieces_and_come_whole(tmp_path: Path, how: str, heard: bytes) -> None:
    watches, kind = watch(tmp_path, how)
    reader = kind()
    watches.begin(reader, "gpunodes")
    for piece in (FIRST[:5], FIRST[5:] + SECOND[:3], SECOND[3:]):
        reader.feed_data(piece)
    await reader.hears(heard)


async def test_a_late_event_holds_up_what_follows_it(tmp_path: Path) -> None:
    watches, kind = watch(tmp_path, "late")
    reader, loop = kind(), asyncio.get_running_loop()
    watches.begin(reader, "gpunodes")
    began = loop.time()
    reader.feed_data(FIRST)
    reader.feed_data(SECOND)
    assert reader.heard == b""
    await reader.hears(FIRST + SECOND)
    assert loop.time() - began >= LATE


async def test_missed_events_never_come_and_the_watch_breaks(tmp_path: Path) -> None:
    watches, kind = watch(tmp_path, "missed")
    reader = kind()
    watches.begin(reader, "gpunodes")
    reader.feed_data(FIRST + SECOND)
    await reader.hears(GONE)


async def test_a_bookmark_is_no_event_and_another_resource_is_left_alone(tmp_path: Path) -> None:
    watches, kind = watch(tmp_path, "missed")
    reader, other = kind(), kind()
    watches.begin(reader, "gpunodes")
    watches.begin(other, "pods")
    reader.feed_data(BOOKMARK)
    other.feed_data(FIRST)
    assert (reader.heard, other.heard) == (BOOKMARK, FIRST)
    assert (tmp_path / "order-1.json").exists()


async def test_a_reader_that_is_no_watch_is_left_alone(tmp_path: Path) -> None:
    watches, kind = watch(tmp_path, "twice")
    reader = kind()
    reader.feed_data(FIRST)
    watches.begin(reader, "gpunodes")
    reader.feed_eof()
    reader.feed_data(FIRST)
    assert reader.heard == FIRST + b"end" + FIRST
