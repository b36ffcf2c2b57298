"""The room in the node's directory."""

import os
from pathlib import Path

from gpushare.agent.reconcile.daemon_files import has_room
from tests.unit.small_disk import no_room, read_only, small_disk


def test_a_directory_has_room_until_its_file_system_is_full(tmp_path: Path) -> None:
    with small_disk(tmp_path):
        assert has_room(tmp_path)
        with no_room(tmp_path):
            assert not has_room(tmp_path)
        assert has_room(tmp_path)


def test_a_file_system_without_a_number_for_another_file_has_no_room(tmp_path: Path) -> None:
    with small_disk(tmp_path, "512k,nr_inodes=3"):
        for name in "ab":
            (tmp_path / name).touch()
        assert not has_room(tmp_path)


def test_a_read_only_file_system_has_no_room(tmp_path: Path) -> None:
    with small_disk(tmp_path):
        with read_only(tmp_path):
            assert not has_room(tmp_path)
            assert os.statvfs(tmp_path).f_bavail > 0, "it is not for want of space"
        assert has_room(tmp_path)


def test_a_directory_that_does_not_answer_has_no_room(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert not has_room(tmp_path / "file" / "below")


def test_a_directory_that_is_not_there_yet_is_not_full(tmp_path: Path) -> None:
    assert has_room(tmp_path / "later")
