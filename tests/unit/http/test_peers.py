"""Who gives way when a server is full: whoever takes most of it, and never a request that is worked on."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.http.peers import Peers, peer_name


def full(*peers: str) -> Peers[int]:
    """A server that is full with a connection of each of `peers`, numbered from 0 on."""
    held = Peers[int](len(peers))
    for number, peer in enumerate(peers):
        assert held.add(number, peer) is None
    return held


NEW = 99


def test_the_peer_with_most_connections_loses_its_oldest_without_a_request() -> None:
    assert full("a", "b", "b").add(NEW, "c") == 1
    assert full("a", "b", "a", "b", "b").add(NEW, "a") == 0


def test_who_opens_too_many_loses_its_own() -> None:
    assert full("a", "b", "b", "b").add(NEW, "b") == 1


def test_a_connection_that_has_sent_a_request_outlives_those_that_have_not() -> None:
    held = full("a", "a", "a")
    held.work(0)
    held.rest(0)
    assert held.add(NEW, "a") == 1


def test_a_new_connection_has_time_beside_idle_ones_of_its_peer() -> None:
    held = full("a", "a", "a", "a")
    for connection in range(4):
        held.work(connection)
        held.rest(connection)
    for connection, gone in ((NEW, 0), (NEW + 1, 1)):
        assert held.add(connection, "a") == gone
        held.remove(gone)
    assert held.add(NEW + 2, "a") == NEW, "half of them are new by now"


def test_of_idle_connections_the_one_goes_that_has_been_idle_longest() -> None:
    held = full("a", "a")
    for connection in (0, 1, 0):
        held.work(connection)
        held.rest(connection)
    assert held.add(NEW, "b") == 1


def test_what_is_worked_on_stays_and_the_new_connection_goes() -> None:
    held = full("a", "a")
    held.work(0)
    held.work(1)
    assert held.add(NEW, "b") == NEW


def test_an_api_server_that_is_busy_gets_the_place_of_an_idle_connection() -> None:
    held = full("api", "api", "other")
    held.work(0)
    held.work(1)
    assert held.add(NEW, "api") == NEW, "it has most, and this one has sent nothing yet"
    held = full("api", "api", "other", "other")
    held.work(0)
    held.work(1)
    assert held.add(NEW, "third") == 2


def test_what_is_gone_makes_room() -> None:
    held = full("a", "a")
    held.remove(0)
    held.remove(0)
    held.work(0)
    held.rest(0)
    assert held.add(NEW, "b") is None
    assert set(held) == {1, NEW}


STEPS = st.lists(
    st.tuples(st.sampled_from(["add", "work", "rest", "remove"]), st.integers(0, 9), st.sampled_from("abc"))
)


@given(STEPS)
def test_nobody_below_an_equal_part_ever_gives_way(steps: list[tuple[str, int, str]]) -> None:
    most, held, peers, working = 4, Peers[int](4), dict[int, str](), set[int]()
    for number, (step, which, peer) in enumerate(steps):
        if step == "add":
            peers[number] = peer
            gone = held.add(number, peer)
            assert (gone is not None) == (len(peers) > most)
            if gone is not None:
                assert gone not in working
                waiting = {peers[peer] for peer in peers if peer not in working}
                shares = {peer: list(peers.values()).count(peer) for peer in waiting}
                assert shares[peers[gone]] == max(shares.values())
                held.remove(gone)
                del peers[gone]
            continue
        known = sorted(peers)
        if not known:
            continue
        connection = known[which % len(known)]
        getattr(held, step)(connection)
        if step == "work":
            working.add(connection)
        else:
            working.discard(connection)
        if step == "remove":
            del peers[connection]
    assert len(held) == len(peers)


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("fd00:1:2:3:4:5:6:7", "fd00:1:2:3::/64"),
        ("fe80::1%eth0", "fe80::/64"),
    ],
)
def test_one_machine_is_one_peer(host: str, name: str) -> None:
    assert peer_name(host) == name
