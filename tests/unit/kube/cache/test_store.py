"""What is kept of objects: only ever newer, and `changed` is called only when what is kept changes."""

from typing import Any

import pytest

from gpushare.kube.cache.store import Store


def obj(version: int, label: str = "", *, heartbeat: str = "", name: str = "n1") -> dict[str, Any]:
    return {"metadata": {"name": name, "resourceVersion": str(version)}, "label": label, "heartbeat": heartbeat}


class Counted(Store[str]):
    """Keeps the label; an object without one is not kept."""

    def __init__(self) -> None:
        self.woken = 0
        super().__init__(lambda obj: obj["label"] or None, self._count)

    def _count(self) -> None:
        self.woken += 1


@pytest.fixture
def store() -> Counted:
    return Counted()


def test_an_answer_that_arrives_late_changes_nothing(store: Counted) -> None:
    store.put(obj(12, "new"))
    store.observe(obj(9, "old"))
    store.put(obj(10, "old"))
    assert store.get("n1") == "new"


def test_an_answer_is_known_before_its_event(store: Counted) -> None:
    store.put(obj(1, "old"))
    store.observe(obj(2, "new"))
    store.put(obj(2, "new"))
    assert (store.get("n1"), store.woken) == ("new", 2)


def test_the_event_of_an_answer_is_not_read_again() -> None:
    read: list[str] = []
    store = Store[str](lambda obj: read.append(obj["label"]) or obj["label"], lambda: None)  # type: ignore[func-returns-value]
    store.observe(obj(2, "new"))
    store.put(obj(2, "new"))
    store.put(obj(3, "newer"))
    assert read == ["new", "newer"]


def test_what_is_not_kept_wakes_nobody(store: Counted) -> None:
    store.put(obj(1, "a", heartbeat="1"))
    store.put(obj(2, "a", heartbeat="2"))
    assert store.woken == 1
    store.put(obj(3, "b", heartbeat="2"))
    assert store.woken == 2


def test_an_object_of_which_nothing_is_kept_any_more_is_dropped(store: Counted) -> None:
    store.put(obj(1, "a"))
    store.put(obj(2))
    assert (store.objects, store.woken) == ({}, 2)


def test_a_list_drops_what_was_deleted_unseen_but_not_what_was_seen_later(store: Counted) -> None:
    store.put(obj(5, "a"))
    store.replace([], "4")
    assert store.get("n1") == "a"
    store.replace([], "6")
    assert store.get("n1") is None


def test_a_list_that_is_older_than_an_answer_does_not_undo_it(store: Counted) -> None:
    store.observe(obj(9, "new"))
    store.replace([obj(5, "old"), obj(6, "b", name="n2")], "7")
    assert store.objects == {("", "n1"): "new", ("", "n2"): "b"}


def test_an_answer_after_the_deletion_does_not_bring_the_object_back(store: Counted) -> None:
    store.put(obj(5, "a"))
    store.remove(obj(7, "a"))
    store.observe(obj(6, "a"))
    assert store.get("n1") is None
    store.observe(obj(8, "b"))
    assert store.get("n1") == "b"


def test_an_answer_after_a_list_without_the_object_brings_nothing_back(store: Counted) -> None:
    store.put(obj(50, "old"))
    store.replace([], "110")
    store.observe(obj(100, "answered before the deletion"))
    assert store.get("n1") is None
    store.observe(obj(120, "made again"))
    assert store.get("n1") == "made again"


def test_an_event_of_another_object_may_be_older_than_the_last_deletion(store: Counted) -> None:
    """kopf handles objects side by side."""
    store.remove(obj(7, "a"))
    store.put(obj(6, "b", name="n2"))
    assert store.get("n2") == "b"


def test_the_deletion_of_a_predecessor_does_not_remove_its_successor(store: Counted) -> None:
    store.put(obj(8, "a"))
    store.remove(obj(7, "a"))
    assert store.get("n1") == "a"
