"""The memory of large bodies: whose is given up when there is too much."""

from hypothesis import given
from hypothesis import strategies as st

from gpushare.http.bodies import SMALL, Bodies

LARGE = SMALL + 1


def test_small_bodies_are_never_given_up() -> None:
    bodies = Bodies[str](LARGE)
    assert bodies.grow("a", "peer", LARGE) == []
    assert [bodies.grow(f"small-{number}", "peer", SMALL) for number in range(100)] == [[]] * 100


def test_the_peer_that_takes_most_gives_way_with_its_largest() -> None:
    bodies = Bodies[str](5 * LARGE)
    for connection, peer, size in (("a", "x", 2 * LARGE), ("b", "x", LARGE), ("c", "y", LARGE)):
        assert bodies.grow(connection, peer, size) == []
    assert bodies.grow("d", "z", 2 * LARGE) == ["a"]


def test_as_many_give_way_as_it_takes() -> None:
    bodies = Bodies[str](6 * LARGE)
    for connection, peer in (("a", "x"), ("b", "x"), ("c", "x")):
        assert bodies.grow(connection, peer, 2 * LARGE) == []
    assert bodies.grow("d", "y", 3 * LARGE) == ["a", "b"]


def test_nobody_gives_way_for_one_that_has_to_go_itself() -> None:
    bodies = Bodies[str](6 * LARGE)
    for connection, peer in (("a", "x"), ("b", "x"), ("c", "y")):
        assert bodies.grow(connection, peer, 2 * LARGE) == []
    assert bodies.grow("d", "z", 3 * LARGE) == ["d"], "x alone would not be enough"


def test_what_is_complete_stays() -> None:
    bodies = Bodies[str](3 * LARGE)
    bodies.grow("a", "x", 2 * LARGE)
    bodies.complete("a")
    assert bodies.grow("b", "y", 2 * LARGE) == ["b"]
    bodies.remove("b")
    bodies.remove("a")
    assert bodies.grow("c", "y", 3 * LARGE) == []


PEERS = {"a": "x", "b": "x", "c": "x", "d": "y", "e": "z"}
STEPS = st.tuples(
    st.sampled_from(["grow", "grow", "grow", "complete", "remove"]),
    st.sampled_from(list(PEERS)),
    st.sampled_from([SMALL, LARGE, 2 * LARGE, 3 * LARGE]),
)


@given(st.lists(STEPS, min_size=10, max_size=40))
def test_bodies_stay_within_their_memory_and_complete_ones_stay(
    steps: list[tuple[str, str, int]],
) -> None:
    """The bodies change as in a server: a body grows until it is complete, and its connection has the next one when
    it is removed."""
    bodies, most = Bodies[str](6 * LARGE), 6 * LARGE
    taken, complete = dict[str, int](), set[str]()

    def remove(connection: str) -> None:
        bodies.remove(connection)
        taken.pop(connection, None)
        complete.discard(connection)

    for step, connection, more in steps:
        if step == "complete":
            bodies.complete(connection)
            complete.add(connection)
            continue
        if step == "remove" or connection in complete:
            remove(connection)
        if step == "grow":
            taken[connection] = taken.get(connection, 0) + more
            gone = bodies.grow(connection, PEERS[connection], taken[connection])
            assert complete.isdisjoint(gone)
            assert connection not in gone or gone == [connection], "nobody goes for one that goes itself"
            for body in gone:
                remove(body)
        assert bodies.bytes == sum(size for size in taken.values() if size > SMALL) <= most
