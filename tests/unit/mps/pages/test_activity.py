"""What a tenant writes into its page, and what of it is passed on."""

import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.mps.pages.activity import SECOND, activity, fault
from gpushare.mps.pages.layout import ACTIVITY_MAGIC, HEAD, MOST_PROTECTED, VERSION, ActivityPage, activity_page
from gpushare.mps.wire import MAX_LONGEST

NOW, AGE = 1000 * SECOND, 100 * SECOND
HONEST = ActivityPage(
    launches=1000,
    last_launch=NOW - SECOND,
    active=40 * SECOND,
    active_since=0,
    gave_way=10 * SECOND,
    held_back=20,
    by_floor=3,
    on_part=500,
    part_sms=66,
    all_sms=132,
    unpaced=0,
    gave_way_to=(10 * SECOND, *[0] * (MOST_PROTECTED - 1)),
    longest=((b"gemm", 4 * 10**6), (b"softmax", 10**6)),
)


def test_an_honest_page_is_told_in_seconds() -> None:
    assert fault(HONEST, HONEST, NOW, AGE) == ""
    told = activity(replace(HONEST, active_since=NOW - 2 * SECOND), NOW, AGE)
    assert (told.active, told.gave_way, told.idle) == (42.0, 10.0, 1.0)
    assert [(kernel.name, kernel.seconds) for kernel in told.longest] == [("gemm", 0.004), ("softmax", 0.001)]


def test_a_page_of_zeros_is_of_a_process_that_has_not_launched() -> None:
    empty = activity_page(HEAD.pack(ACTIVITY_MAGIC, VERSION).ljust(4096, b"\0"))
    assert empty is not None
    assert fault(empty, None, NOW, AGE) == ""
    assert activity(empty, NOW, AGE).idle is None


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"launches": 10**18}, "launches is"),
        ({"launches": 999}, "launches went from 1000 back to 999"),
        ({"active": AGE + 1}, "active is"),
        ({"active": 0}, "active went from"),
        ({"gave_way": AGE + 1}, "gave_way is"),
        ({"held_back": 10**18}, "held_back is"),
        ({"unpaced": 10**18}, "unpaced is"),
        ({"last_launch": NOW + 2 * SECOND}, "last_launch is"),
        ({"active_since": 2**63}, "active_since is"),
        ({"all_sms": 10**6}, "all_sms is"),
        ({"gave_way_to": (0, 50 * SECOND, *[0] * 14)}, "gave_way_to has"),
    ],
)
def test_what_cannot_be_true_is_named(changed: dict[str, int], named: str) -> None:
    assert named in fault(replace(HONEST, **changed), HONEST, NOW, AGE)


def test_a_page_of_something_else_is_no_page_of_activity() -> None:
    assert activity_page(bytes(4096)) is None
    assert "does not begin" in fault(None, None, NOW, AGE)


@pytest.mark.parametrize("name", [b"", b"\x1b[2J", b"a\nb", "ä".encode(), b"\xff" * 55])
def test_a_kernel_of_a_name_that_is_no_ascii_is_left_out(name: bytes) -> None:
    told = activity(replace(HONEST, longest=((name, 10**6), (b"gemm", 10**6))), NOW, AGE)
    assert [kernel.name for kernel in told.longest] == ["gemm"]


@given(st.binary(min_size=0, max_size=64), st.lists(st.integers(0, 2**64 - 1), min_size=158, max_size=158))
def test_whatever_a_page_holds_what_is_told_is_bounded(start: bytes, words: list[int]) -> None:
    honest_head = HEAD.pack(ACTIVITY_MAGIC, VERSION)
    for content in (start.ljust(4096, b"\xa5"), (honest_head + struct.pack("<158Q", *words)).ljust(4096, b"\0")):
        page = activity_page(content)
        said = fault(page, None, NOW, AGE)
        if page is None or said:
            assert len(said) <= 512
            continue
        told = activity(page, NOW, AGE)
        assert 0 <= told.active <= AGE / SECOND
        assert 0 <= told.gave_way <= AGE / SECOND
        assert len(told.longest) <= MAX_LONGEST
        assert all(kernel.name.isprintable() and kernel.name.isascii() for kernel in told.longest)
