"""Reading how busy a process says it is from the names of its threads."""

import ctypes
import os
import threading
from pathlib import Path

import pytest

from gpushare.agent.process.busy_thread import MOST_THREADS, SEARCHES, BusyReader

PR_SET_NAME = 15


def thread(proc: Path, pid: int, tid: int, name: bytes) -> Path:
    file = proc / str(pid) / "task" / str(tid) / "comm"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(name + b"\n")
    return file


def test_the_thread_is_found_among_others_and_then_read_alone(tmp_path: Path) -> None:
    reader = BusyReader(tmp_path)
    thread(tmp_path, 7, 7, b"python3")
    named = thread(tmp_path, 7, 9, b"gpubusy000000ff")
    assert reader.read(7, 100) == 2.55
    named.write_bytes(b"gpubusy00000100\n")
    thread(tmp_path, 7, 7, b"gpubusy00001000")
    assert reader.read(7, 100) == 2.56


@pytest.mark.parametrize(
    "name", [b"gpubusy-nocupti", b"gpubusy", b"gpubusy0000000G", b"agpubusy0000001", b"gpubusy0000\n001", b"\xff\xfe"]
)
def test_any_other_name_says_nothing(tmp_path: Path, name: bytes) -> None:
    thread(tmp_path, 7, 7, name)
    assert BusyReader(tmp_path).read(7, 100) is None


def test_a_process_may_be_listed_before_its_thread_has_started(tmp_path: Path) -> None:
    reader = BusyReader(tmp_path)
    file = thread(tmp_path, 7, 7, b"python3")
    for _ in range(SEARCHES - 1):
        assert reader.read(7, 100) is None
    file.write_bytes(b"gpubusy00000001\n")
    assert reader.read(7, 100) == 0.01


def test_a_process_without_the_thread_is_searched_a_few_times_alone(tmp_path: Path) -> None:
    reader = BusyReader(tmp_path)
    file = thread(tmp_path, 7, 7, b"python3")
    for _ in range(SEARCHES):
        assert reader.read(7, 100) is None
    file.write_bytes(b"gpubusy00000001\n")
    assert reader.read(7, 100) is None
    assert reader.read(7, 200) == 0.01, "another process with its PID"
    reader.forget_others({(7, 100)})
    assert reader.read(7, 100) is None
    reader.forget_others(set())
    assert reader.read(7, 100) == 0.01


def test_a_process_that_has_ended_says_nothing(tmp_path: Path) -> None:
    reader = BusyReader(tmp_path)
    assert reader.read(7, 100) is None
    file = thread(tmp_path, 8, 8, b"gpubusy00000001")
    assert reader.read(8, 100) == 0.01
    file.unlink()
    assert reader.read(8, 100) is None


def test_of_a_process_with_very_many_threads_few_are_looked_at(tmp_path: Path) -> None:
    for tid in range(MOST_THREADS + 50):
        thread(tmp_path, 7, tid, b"worker")
    looked = 0

    class Counting(type(tmp_path)):
        def read_bytes(self) -> bytes:
            nonlocal looked
            looked += 1
            return super().read_bytes()

    assert BusyReader(Counting(tmp_path)).read(7, 100) is None
    assert looked == MOST_THREADS


def test_a_thread_of_a_real_process_is_read() -> None:
    named, over = threading.Event(), threading.Event()

    def run() -> None:
        ctypes.CDLL(None).prctl(PR_SET_NAME, b"gpubusy0000002a")
        named.set()
        over.wait(30)

    worker = threading.Thread(target=run)
    worker.start()
    try:
        assert named.wait(30)
        assert BusyReader().read(os.getpid(), 1) == 0.42
    finally:
        over.set()
        worker.join()
