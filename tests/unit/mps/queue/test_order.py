"""Who is next: class, then the namespace with the fewest places, then who came first; and nobody starves."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.mps.queue.order import EVERY, Waiter, order, rank

PROTECTED, NORMAL, BEST_EFFORT = (rank(name) for name in ("Protected", "Normal", "BestEffort"))


def waiter(name: str, namespace: str, since: float, of_class: int = NORMAL) -> Waiter:
    return Waiter((name, "app"), namespace, of_class, since)


def names(waiters: list[Waiter]) -> str:
    return "".join(waiter.container[0] for waiter in waiters)


@pytest.mark.parametrize(
    ("waiters", "held", "handed_over", "expected"),
    [
        pytest.param([], {}, 0, "", id="nobody"),
        pytest.param(
            [waiter("b", "x", 2), waiter("a", "x", 1), waiter("c", "x", 3)], {}, 0, "abc", id="who came first"
        ),
        pytest.param(
            [waiter("a", "x", 1, BEST_EFFORT), waiter("b", "x", 2), waiter("c", "y", 3, PROTECTED)],
            {"y": 9},
            0,
            "cba",
            id="a class before those below it, whatever its namespace has",
        ),
        pytest.param(
            [waiter(name, "many", at) for at, name in enumerate("abc")] + [waiter("z", "one", 9)],
            {"many": 8},
            0,
            "zabc",
            id="the namespace that has nothing comes before that of many",
        ),
        pytest.param(
            [waiter(name, "x", at) for at, name in enumerate("abc")]
            + [waiter(name, "y", 5 + at) for at, name in enumerate("uv")],
            {"x": 1},
            EVERY,
            "uav",
            id="whoever is picked counts for the next pick",
        ),
        pytest.param(
            [waiter("o", "x", 0, BEST_EFFORT), *(waiter(name, "x", 1, PROTECTED) for name in "abcdef")],
            {},
            0,
            "abcodef",
            id="each fourth hand-over goes to who has waited longest",
        ),
        pytest.param(
            [waiter("o", "x", 0, BEST_EFFORT), waiter("a", "x", 1, PROTECTED)],
            {},
            EVERY - 1,
            "oa",
            id="hand-overs are counted on from those before",
        ),
        pytest.param([waiter("b", "x", 1), waiter("a", "x", 1)], {}, 0, "ab", id="who came at the same time, by name"),
    ],
)
def test_the_order_of_those_who_wait(
    waiters: list[Waiter], held: dict[str, int], handed_over: int, expected: str
) -> None:
    assert names(order(waiters, held, handed_over))[: len(expected)] == expected


def test_a_class_of_another_release_counts_as_normal() -> None:
    assert rank("Urgent") == rank("") == NORMAL


WAITERS = st.lists(
    st.builds(
        Waiter,
        st.tuples(st.uuids().map(str), st.just("app")),
        st.sampled_from("xyz"),
        st.integers(0, 2),
        st.integers(0, 9).map(float),
    ),
    max_size=12,
    unique_by=lambda waiter: waiter.container,
)
HELD = st.dictionaries(st.sampled_from("xyz"), st.integers(0, 9), max_size=3)


@given(WAITERS, HELD, st.integers(0, 9))
def test_the_order_is_that_of_one_hand_over_after_another(
    waiters: list[Waiter], held: dict[str, int], handed_over: int
) -> None:
    """By the rule as it is written down, asked again after each."""
    left, has, expected = list(waiters), Counter(held), []
    for number in range(handed_over + 1, handed_over + 1 + len(waiters)):
        oldest = min(left, key=lambda item: (item.since, item.container))
        first = min(left, key=lambda item: (item.rank, has[item.namespace], item.since, item.container))
        pick = oldest if number % EVERY == 0 else first
        left.remove(pick)
        has[pick.namespace] += 1
        expected.append(pick)
    assert order(waiters, held, handed_over) == expected


@given(WAITERS.filter(bool), HELD, st.integers(0, 9), st.data())
def test_whoever_waits_is_served_within_a_bound_whoever_comes(
    waiters: list[Waiter], held: dict[str, int], handed_over: int, data: st.DataObject
) -> None:
    """Newcomers of the best class, in a namespace without a place, before each hand-over, cannot put it off."""
    mine = data.draw(st.sampled_from(waiters))
    older = sum((item.since, item.container) < (mine.since, mine.container) for item in waiters)
    left, came = list(waiters), 0
    for number in range(EVERY * (older + 1)):
        for _ in range(data.draw(st.integers(0, 2))):
            came += 1
            left.append(waiter(f"new-{came}", f"new-{came}", 10.0 + came, PROTECTED))
        pick = order(left, held, handed_over + number)[0]
        if pick == mine:
            return
        left.remove(pick)
    raise AssertionError(f"{mine} starves")
