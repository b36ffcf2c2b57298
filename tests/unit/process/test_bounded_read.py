"""No file is read beyond its bound or its time, whoever made it and however it grows."""

import errno
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.process import bounded_read
from gpushare.process.bounded_read import (
    BoundExceededError,
    lines,
    numbered_entries,
    read_bytes,
    read_end,
    read_regular,
    read_start,
    reading_until,
)


@contextmanager
def endless(path: Path) -> Iterator[Path]:
    """A pipe that always has more, as a file of /proc whose process makes mounts faster than they are read."""
    os.mkfifo(path)
    ends = threading.Event()

    def write() -> None:
        with path.open("wb", buffering=0) as pipe:
            try:
                while not ends.is_set():
                    pipe.write(b"x" * 1000 + b"\n")
            except BrokenPipeError:
                pass

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield path
    finally:
        ends.set()
        writer.join(10)
        assert not writer.is_alive()


@pytest.mark.parametrize("read", [read_bytes, lambda path, most: b"".join(lines(path, most))])
def test_what_has_no_end_is_read_to_its_bound(tmp_path: Path, read: object) -> None:
    with endless(tmp_path / "mountinfo") as path, pytest.raises(BoundExceededError) as raised:
        read(path, 200_000)  # type: ignore[operator]
    assert raised.value.errno == errno.EFBIG
    assert str(path) in str(raised.value)
    assert "200000 bytes" in str(raised.value)


def test_a_thread_reads_no_more_once_its_time_is_over(tmp_path: Path) -> None:
    with endless(tmp_path / "mountinfo") as path:
        began = time.monotonic()
        with pytest.raises(BoundExceededError) as raised, reading_until(began + 0.1):
            read_bytes(path, 10**12)
        assert raised.value.errno == errno.ETIMEDOUT
        assert time.monotonic() - began < bounded_read.SECONDS


def test_a_deadline_within_another_never_extends_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    with reading_until(time.monotonic() - 1), reading_until(time.monotonic() + 60), pytest.raises(BoundExceededError):
        read_bytes(tmp_path / "file")
    assert read_bytes(tmp_path / "file") == b"x"


def test_the_line_that_decides_is_the_last_one_read(tmp_path: Path) -> None:
    with endless(tmp_path / "mountinfo") as path:
        assert next(iter(lines(path, 10**12))) == b"x" * 1000


def test_the_start_of_what_has_no_end_can_be_had(tmp_path: Path) -> None:
    with endless(tmp_path / "cmdline") as path:
        assert len(read_start(path, 4096)) == 4096


@given(st.binary(max_size=300_000), st.integers(min_value=0, max_value=300_000))
def test_a_file_is_read_whole_or_not_at_all(content: bytes, most: int) -> None:
    path = Path("/dev/shm") / f"bounded-{os.getpid()}"
    path.write_bytes(content)
    try:
        assert read_start(path, most) == content[:most]
        assert read_end(path, 0, most) == (content[-most:] if most else b"")
        for read in (read_bytes, read_regular):
            if len(content) <= most:
                assert read(path, most) == content
            else:
                with pytest.raises(BoundExceededError):
                    read(path, most)
        assert list(lines(path)) == (content.removesuffix(b"\n").split(b"\n") if content else [])
    finally:
        path.unlink()


@pytest.mark.parametrize("made", ["pipe", "link", "directory"])
def test_what_is_no_file_is_not_read_nor_waited_for(tmp_path: Path, made: str) -> None:
    path = tmp_path / "broker.json"
    if made == "pipe":
        os.mkfifo(path)
    elif made == "link":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    with pytest.raises(OSError, match=r"no file|symbolic links"):
        read_regular(path)


def test_the_processes_of_proc_are_its_numbers(tmp_path: Path) -> None:
    for name in ("1", "4711", "self", "1a"):
        (tmp_path / name).mkdir()
    assert sorted(numbered_entries(tmp_path)) == [1, 4711]
    with pytest.raises(BoundExceededError, match="not listed in time"), reading_until(time.monotonic() - 1):
        list(numbered_entries(tmp_path))
