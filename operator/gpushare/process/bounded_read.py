"""Reads files that others may have written or lead, such as those below /proc: never without a bound.

Guarantees: nothing here reads more than `max_bytes`, or goes on after its time or that of its thread (`reading_until`).
What is beyond a bound is an error and no shorter content, but for `read_start`, which says so in its name. A file is
read in pieces, so that who looks for one line keeps no more than a piece of it. Agent, broker and supervisor read by
these functions alone: the suite looks for other ways in (`tests/unit/suite/test_bounded_reads.py`).

Not guaranteed: the end of a single read(2), which the kernel may hold up, as while a process' memory is locked. Who
must go on reads in a thread (`agent/aio/blocking.py`); that one stops at its next piece.
"""

import errno
import os
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SECONDS = 2.0
"""The time for one file. A file of ours takes less than a millisecond, one of /proc is made as it is read."""
MAX_BYTES = 1024 * 1024
"""More than any file has that is read whole. /proc/PID/status of a process with 65,536 groups has 0.7 MB."""
_PIECE = 64 * 1024
_thread = threading.local()

GONE = (FileNotFoundError, ProcessLookupError)
"""How /proc says that a process has ended. Any other OSError says nothing of it."""


class BoundExceededError(OSError):
    """The file has more bytes than its bound, or took more time; the text names file and bound."""


@contextmanager
def reading_until(deadline: float) -> Iterator[None]:
    """What this thread reads meanwhile ends at `deadline` (time.monotonic), whatever time each file has."""
    before = getattr(_thread, "deadline", None)
    _thread.deadline = deadline if before is None else min(deadline, before)
    try:
        yield
    finally:
        _thread.deadline = before


def is_overdue() -> bool:
    """Whether the time of this thread is over."""
    deadline = getattr(_thread, "deadline", None)
    return deadline is not None and time.monotonic() > deadline


def read_bytes(path: Path, max_bytes: int = MAX_BYTES) -> bytes:
    """All of the file. OSError: it cannot be read, BoundExceededError among them."""
    return b"".join(_pieces(path, max_bytes))


def read_regular(path: Path, max_bytes: int = MAX_BYTES) -> bytes:
    """All of a file in a directory where others can make what they like: waits for nobody at the other end of a pipe,
    follows no link and reads nothing that is no file. OSError as `read_bytes`.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is no file", str(path))
        return b"".join(_bounded(_read(descriptor, path, SECONDS, min(status.st_size, max_bytes) + 1), path, max_bytes))
    finally:
        os.close(descriptor)


def read_text(path: Path, max_bytes: int = MAX_BYTES) -> str:
    """All of the file; bytes that are no text are replaced, and no line end is changed. OSError as `read_bytes`."""
    return read_bytes(path, max_bytes).decode(errors="replace")


def read_start(path: Path, max_bytes: int) -> bytes:
    """Its first `max_bytes` at most, however much follows. OSError: it cannot be read."""
    content = bytearray()
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for piece in _read(descriptor, path, SECONDS, max_bytes):
            content += piece
            if len(content) >= max_bytes:
                break
    finally:
        os.close(descriptor)
    return bytes(content[:max_bytes])


def read_end(path: Path, start: int, max_bytes: int) -> bytes:
    """What follows after `start` bytes, its last `max_bytes` at most. OSError: it cannot be read."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.lseek(descriptor, max(start, os.fstat(descriptor).st_size - max_bytes), os.SEEK_SET)
        return os.read(descriptor, max_bytes)
    finally:
        os.close(descriptor)


def lines(path: Path, max_bytes: int = MAX_BYTES) -> Iterator[bytes]:
    """Its lines without their ends, by newlines alone. Who has the line that decides stops, and no more is read.

    OSError as `read_bytes`, from the iteration, after the lines before the bound.
    """
    rest = b""
    for piece in _pieces(path, max_bytes):
        *whole, rest = (rest + piece).split(b"\n")
        yield from whole
    if rest:
        yield rest


def numbered_entries(directory: Path) -> Iterator[int]:
    """The entries of a directory that are numbers: the processes in /proc. OSError: it cannot be read, in time."""
    end = _end(float("inf"))
    with os.scandir(directory) as entries:
        for entry in entries:
            _check_time(directory, end, "was not listed in time")
            if entry.name.isdigit():
                yield int(entry.name)


def _pieces(path: Path, max_bytes: int) -> Iterator[bytes]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield from _bounded(_read(descriptor, path, SECONDS, _PIECE), path, max_bytes)
    finally:
        os.close(descriptor)


def _bounded(pieces: Iterator[bytes], path: Path, max_bytes: int) -> Iterator[bytes]:
    left = max_bytes
    for piece in pieces:
        left -= len(piece)
        if left < 0:
            raise BoundExceededError(errno.EFBIG, f"it has more than {max_bytes} bytes", str(path))
        yield piece


def _read(descriptor: int, path: Path, seconds: float, most: int) -> Iterator[bytes]:
    end = _end(seconds)
    while piece := os.read(descriptor, min(most, _PIECE)):
        yield piece
        _check_time(path, end, f"it was not read within {seconds:g} s")


def _end(seconds: float) -> float:
    deadline = getattr(_thread, "deadline", None)
    end = time.monotonic() + seconds
    return end if deadline is None else min(end, deadline)


def _check_time(path: Path, end: float, text: str) -> None:
    if time.monotonic() > end:
        raise BoundExceededError(errno.ETIMEDOUT, text, str(path))
