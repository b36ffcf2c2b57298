"""Files shared by agent and supervisor: whole or not at all, and no content makes a reader fail."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from msgspec import structs

from gpushare.mps.files import MAX_BYTES, UNFINISHED, ModelFiles, Read, read_model, write_model, write_text
from gpushare.mps.wire import DaemonLimits, DesiredDaemon, encode

WANTED = DesiredDaemon(uuid="GPU-1", share="inference", limits=DaemonLimits(threads=50, memory_mib=16384))


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "daemon.json"
    write_model(path, WANTED, mode=0o640)
    assert read_model(path, DesiredDaemon).value == WANTED
    assert path.stat().st_mode & 0o777 == 0o640
    assert '"memoryMib":16384' in path.read_text()


KILLED_IN_THE_MIDDLE = """
import os, pathlib, signal, sys
from gpushare.mps.files import write_text
pathlib.Path.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
write_text(pathlib.Path(sys.argv[1]), "never to be read")
"""


def test_what_a_killed_writer_left_goes_with_the_next_process_that_writes(tmp_path: Path) -> None:
    path, others = tmp_path / "daemon.json", tmp_path / ".spec.json.new"
    others.write_text("of another program")
    killed = subprocess.run([sys.executable, "-c", KILLED_IN_THE_MIDDLE, str(path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    [left] = [file for file in tmp_path.iterdir() if file != others]
    os.utime(left, (1, 1))  # before this process began
    write_model(path, WANTED)
    assert sorted(tmp_path.iterdir()) == [others, path]


def test_a_file_that_somebody_writes_now_stays(tmp_path: Path) -> None:
    unfinished = tmp_path / f".state.json.abcd{UNFINISHED}"
    unfinished.touch()
    write_model(tmp_path / "daemon.json", WANTED)
    assert unfinished.exists()


def test_an_absent_file_is_told_from_a_bad_one(tmp_path: Path) -> None:
    read = read_model(tmp_path / "daemon.json", DesiredDaemon)
    assert read.value is None
    assert read.absent
    assert "is not there" in read.reason


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "no JSON"),
        ('{"uuid": "GPU-1"', "no JSON"),
        ("[]", "Expected `object`"),
        ('{"uuid": "GPU-1", "share": "a", "limits": {"threads": 0, "memoryMib": 1}}', "limits.threads"),
        ('{"version": 2, "uuid": "GPU-1", "share": "a", "limits": {"threads": 1, "memoryMib": 1}}', "version"),
        ("\x00" * 10, "no JSON"),
        (" " * (MAX_BYTES + 1), "larger than"),
    ],
)
def test_garbage_reads_as_no_value_with_a_reason(tmp_path: Path, content: str, reason: str) -> None:
    path = tmp_path / "daemon.json"
    path.write_text(content)
    read = read_model(path, DesiredDaemon)
    assert read.value is None
    assert not read.absent
    assert reason in read.reason


def test_a_directory_in_the_file_s_place_reads_as_no_value(tmp_path: Path) -> None:
    (tmp_path / "daemon.json").mkdir()
    assert "cannot be read" in read_model(tmp_path / "daemon.json", DesiredDaemon).reason


def test_fields_of_a_newer_release_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "daemon.json"
    path.write_text(encode(WANTED).decode().replace("{", '{"later": [1], ', 1))
    assert read_model(path, DesiredDaemon).value == WANTED


def test_a_failed_write_leaves_the_old_content_and_no_rubbish(tmp_path: Path) -> None:
    path = tmp_path / "daemon.json"
    write_text(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "\ud800")
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["daemon.json"]


def test_a_failed_write_is_the_same_error_each_time_and_names_the_file(tmp_path: Path) -> None:
    errors = set()
    for _ in range(2):
        with pytest.raises(FileNotFoundError) as failed:
            write_text(tmp_path / "gone" / "file", "text")
        errors.add(str(failed.value))
    assert errors == {f"[Errno 2] No such file or directory: '{tmp_path}/gone/file'"}


def test_a_reader_never_sees_half_a_file(tmp_path: Path) -> None:
    path = tmp_path / "daemon.json"
    write_model(path, WANTED)
    done = threading.Event()

    def write() -> None:
        for count in range(300):
            write_model(path, structs.replace(WANTED, share="x" * (1 + count % 40)))
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not done.is_set():
        assert read_model(path, DesiredDaemon).value is not None
    writer.join()


def test_a_file_is_read_again_only_after_it_was_replaced(tmp_path: Path) -> None:
    files, path = ModelFiles(), tmp_path / "daemon.json"
    write_model(path, WANTED)
    first = files.read(path, DesiredDaemon)
    assert files.read(path, DesiredDaemon) is first
    newer = structs.replace(WANTED, share="training")
    write_model(path, newer)
    assert files.read(path, DesiredDaemon).value == newer


def test_what_a_file_held_is_forgotten_once_it_is_gone_or_cannot_be_read(tmp_path: Path) -> None:
    files, path = ModelFiles(), tmp_path / "daemon.json"
    write_model(path, WANTED)
    assert files.read(path, DesiredDaemon).value == WANTED
    path.write_text("{")
    assert "no JSON" in files.read(path, DesiredDaemon).reason
    path.unlink()
    assert files.read(path, DesiredDaemon).absent


def test_a_file_that_is_replaced_while_it_is_read_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "daemon.json"
    write_model(path, WANTED)
    newer = structs.replace(WANTED, share="training")

    def read_and_replace(at: Path, model: type[DesiredDaemon]) -> Read[DesiredDaemon]:
        content = read_model(at, model)
        write_model(path, newer)
        return content

    files = ModelFiles(read_and_replace)
    assert files.read(path, DesiredDaemon).value == WANTED
    assert files.read(path, DesiredDaemon).value == newer


def test_no_file_makes_a_reader_wait_or_look_elsewhere(tmp_path: Path) -> None:
    """One of the attach broker's, which may write into its directory what it likes."""
    pipe, link, directory, other = (tmp_path / name for name in ("pipe", "link", "directory", "other.json"))
    os.mkfifo(pipe)
    write_model(other, WANTED)
    link.symlink_to(other)
    directory.mkdir()
    for path in (pipe, link, directory):
        read = read_model(path, DesiredDaemon)
        assert (read.value, read.absent) == (None, False), path
