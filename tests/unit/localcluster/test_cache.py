"""A cache entry is named by all that went into it, exists complete or not at all, and is built once."""

import os
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localcluster.cache import build_once, contents, keep_newest, key_of

files = st.dictionaries(st.text(min_size=1, max_size=5), st.binary(max_size=8), max_size=4)


@given(files, files, st.lists(st.text(max_size=3), max_size=3), st.lists(st.text(max_size=3), max_size=3))
def test_keys_are_equal_exactly_when_the_inputs_are(
    first: dict[str, bytes], second: dict[str, bytes], flags: list[str], others: list[str]
) -> None:
    same = first == second and flags == others
    assert (key_of(first.items(), *flags) == key_of(second.items(), *others)) is same


def test_a_key_does_not_depend_on_the_order_of_files() -> None:
    assert key_of([("a", b"1"), ("b", b"2")]) == key_of([("b", b"2"), ("a", b"1")])


def test_byte_code_and_install_metadata_are_not_inputs(tmp_path: Path) -> None:
    for name in ("pkg/a.py", "pkg/__pycache__/a.pyc", "x.egg-info/PKG-INFO"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    assert [name for name, _ in contents(tmp_path, ["."])] == ["pkg/a.py"]


def test_a_failed_build_leaves_no_entry_and_is_tried_again(tmp_path: Path) -> None:
    entry = tmp_path / "thing-1"

    def fail(directory: Path) -> None:
        (directory / "half").touch()
        raise RuntimeError("compiler")

    with pytest.raises(RuntimeError):
        build_once(entry, fail)
    assert not entry.exists()
    assert build_once(entry, lambda directory: (directory / "whole").touch()) == entry
    assert [path.name for path in entry.iterdir()] == ["whole"]


def test_concurrent_builders_build_once(tmp_path: Path) -> None:
    calls: list[Path] = []

    def slow(directory: Path) -> None:
        calls.append(directory)
        threading.Event().wait(0.1)

    threads = [threading.Thread(target=build_once, args=(tmp_path / "thing-1", slow)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=10)
    assert len(calls) == 1


def test_only_the_last_used_entries_are_kept(tmp_path: Path) -> None:
    for age, name in enumerate(["new", "middle", "old"]):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    removed = keep_newest(tmp_path.iterdir(), 2)
    assert [path.name for path in removed] == ["old"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["middle", "new"]


def test_an_entry_in_use_is_kept_however_many_there_are(tmp_path: Path) -> None:
    for name, age in (("newest", 0), ("recent", 60), ("old", 3600)):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    removed = keep_newest([*tmp_path.iterdir(), tmp_path / "gone"], 1, idle_s=900)
    assert sorted(path.name for path in removed) == ["gone", "old"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["newest", "recent"]
