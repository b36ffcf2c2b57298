"""The bytes of native/pages.h. Pure: what is read here says what a page holds, and not that it can be true."""

import struct
from dataclasses import dataclass
from enum import IntEnum

from gpushare.api.client_class import ClientClass

PAGE_BYTES, VERSION = 4096, 1
MOST_PROTECTED, MOST_LONGEST = 16, 16
BOARD_MAGIC, ACTIVITY_MAGIC, BUSY_MAGIC, ANSWER_MAGIC = 0x42737067, 0x41737067, 0x57737067, 0x50737067
MAPPED = (0x6D737067).to_bytes(4, "little")
"""What a process says once it has mapped its new pages, and sealed its busy page."""
HEAD = struct.Struct("<2I")
"""Magic number and version, of each page."""
WORD_AT = 8
"""Of a busy page."""
_ANSWER = struct.Struct("<8I2Q")
_ACTIVITY = struct.Struct("<2I8Q2IQ5Q16Q")
_SCALARS = (
    "launches", "last_launch", "active", "active_since", "gave_way", "held_back", "by_floor", "on_part", "part_sms",
    "all_sms", "unpaced",
)  # fmt: skip
_LONGEST = struct.Struct("<Q56s")


class ClassNumber(IntEnum):
    """`enum class` there."""

    NONE = 0
    PROTECTED = 1
    NORMAL = 2
    BEST_EFFORT = 3


_NUMBERS = {
    ClientClass.PROTECTED.value: ClassNumber.PROTECTED,
    ClientClass.NORMAL.value: ClassNumber.NORMAL,
    ClientClass.BEST_EFFORT.value: ClassNumber.BEST_EFFORT,
}


def class_number(name: str) -> ClassNumber:
    """NONE for a class that only another release knows."""
    return _NUMBERS.get(name, ClassNumber.NONE)


@dataclass(frozen=True, slots=True)
class PagesAnswer:
    """To PAGES or BUSY. `activity`, `own_busy`, `protected`: how many descriptors of each come with it."""

    client_class: ClassNumber = ClassNumber.NONE
    sm_percent: int = 0
    floor_percent: int = 0
    activity: int = 0
    own_busy: int = 0
    protected: int = 0
    broker: int = 0
    generation: int = 0

    def encode(self) -> bytes:
        numbers = (self.client_class, self.sm_percent, self.floor_percent, self.activity, self.own_busy, self.protected)
        return _ANSWER.pack(ANSWER_MAGIC, VERSION, *numbers, self.broker, self.generation)


@dataclass(frozen=True, slots=True)
class ActivityPage:
    """Times are nanoseconds: of CLOCK_MONOTONIC, or durations. `longest`: (name, duration), of those that have one."""

    launches: int
    last_launch: int
    active: int
    active_since: int
    gave_way: int
    held_back: int
    by_floor: int
    on_part: int
    part_sms: int
    all_sms: int
    unpaced: int
    gave_way_to: tuple[int, ...]
    longest: tuple[tuple[bytes, int], ...]


def activity_page(content: bytes) -> ActivityPage | None:
    """None: it is none of this version."""
    magic, version, *numbers = _ACTIVITY.unpack_from(content)
    if (magic, version) != (ACTIVITY_MAGIC, VERSION):
        return None
    longest = tuple(
        (name.partition(b"\0")[0], duration)
        for duration, name in _LONGEST.iter_unpack(
            content[_ACTIVITY.size : _ACTIVITY.size + MOST_LONGEST * _LONGEST.size]
        )
        if duration
    )
    scalars: list[int] = numbers[: len(_SCALARS)]
    return ActivityPage(**dict(zip(_SCALARS, scalars, strict=True)), gave_way_to=tuple(numbers[16:32]), longest=longest)


def busy_word(content: bytes) -> int | None:
    """None: it is no busy page of this version."""
    if content[: HEAD.size] != HEAD.pack(BUSY_MAGIC, VERSION):
        return None
    return int.from_bytes(content[WORD_AT : WORD_AT + 8], "little")
