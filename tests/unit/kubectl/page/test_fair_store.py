"""What the page keeps of many namespaces: bounded, and a namespace of few objects loses none to one of many."""

from hypothesis import given
from hypothesis import strategies as st

from gpushare.kubectl.page.cluster.fair_store import FairStore

SIZE = len('{"a": "x"}')
MOST = 20 * SIZE

keys = st.tuples(st.sampled_from(["many", "few", "other"]), st.sampled_from("abcdefghijklmnopqrstuvwxyz"))
steps = st.lists(st.tuples(keys, st.integers(0, 9)))


@given(steps)
def test_whatever_comes_and_goes_the_store_is_bounded_and_fair(steps: list[tuple[tuple[str, str], int]]) -> None:
    store, there = FairStore(MOST), set()
    for key, size in steps:
        if size:
            store.put(key, {"a": "x" * size})
            there.add(key)
        else:
            store.remove(key)
            there.discard(key)
    kept = store.by_namespace()
    assert sum(len(objects) for objects in kept.values()) == len(list(store)) <= len(there)
    assert sum(SIZE + len(item["a"]) - 1 for item in store) <= MOST
    assert bool(store.left_out) == (len(list(store)) < len(there))


def test_a_namespace_of_few_loses_none_to_one_of_many() -> None:
    store = FairStore(MOST)
    for number in range(5):
        store.put(("few", str(number)), {"a": "x"})
    for number in range(100):
        store.put(("many", str(number)), {"a": "x"})
    assert {namespace: len(objects) for namespace, objects in store.by_namespace().items()} == {"few": 5, "many": 15}
    assert store.left_out.startswith("85 are left out, most of them of namespace many")
    for number in range(100):
        store.remove(("many", str(number)))
    assert (len(list(store)), store.left_out) == (5, "")


def test_of_events_the_oldest_of_the_largest_namespace_go() -> None:
    store = FairStore(2 * len('{"at": 1}'), oldest_go=True)
    for number in range(1, 6):
        store.put(("ml", str(number)), {"at": number})
    assert [item["at"] for item in store] == [4, 5]
    assert store.left_out == ""
