"""Who may hold how many of the broker's connections, and who gives way."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.mps.broker.connections import (
    CONNECTS_AT_ONCE,
    CONNECTS_PER_SECOND,
    MAX_CONNECTIONS,
    MAX_OF_POD,
    MAX_OF_POD_WITHOUT_PART,
    MAX_PROCESSES_TIMED,
    MAX_WITHOUT_PART,
    ConnectRates,
    HasRoom,
    NoRoom,
    PodConnections,
    needed,
    room_for,
)

FULL = {f"granted-{number}": PodConnections(MAX_OF_POD, needed(2)) for number in range(MAX_CONNECTIONS // MAX_OF_POD)}
STRANGERS = {
    f"stranger-{number}": PodConnections(MAX_OF_POD_WITHOUT_PART)
    for number in range(MAX_WITHOUT_PART // MAX_OF_POD_WITHOUT_PART)
}
MORE = {f"granted-{number}": PodConnections(MAX_OF_POD, needed(2)) for number in range(24)}


@pytest.mark.parametrize(
    ("holders", "room"),
    [
        pytest.param({}, HasRoom(), id="a stranger finds room"),
        pytest.param({"me": PodConnections(MAX_OF_POD_WITHOUT_PART)}, None, id="a stranger holds few"),
        pytest.param({"me": PodConnections(0, needed(2)), **FULL}, HasRoom("granted-0"), id="need comes before excess"),
        pytest.param({"me": PodConnections(MAX_OF_POD, needed(2))}, None, id="a pod with a part holds 64"),
        pytest.param({"me": PodConnections(MAX_OF_POD, needed(100))}, HasRoom(), id="its processes need more than 64"),
        pytest.param({"me": PodConnections(0, 4), **STRANGERS, **MORE}, HasRoom("stranger-0"), id="strangers go first"),
        pytest.param(STRANGERS, HasRoom("stranger-0"), id="of strangers whoever holds most"),
        pytest.param(
            {"me": PodConnections(MAX_OF_POD_WITHOUT_PART - 1), **STRANGERS}, None, id="a stranger that holds as many"
        ),
        pytest.param(FULL, None, id="a stranger takes nothing from those with a part"),
        pytest.param({"me": PodConnections(63, needed(2)), **FULL}, None, id="a pod with a part that holds as many"),
        pytest.param(
            {"me": PodConnections(0, 4), **{f"waits-{number}": PodConnections(64, 64) for number in range(32)}},
            None,
            id="nobody's granted processes give way",
        ),
    ],
)
def test_who_gives_way_to_one_more_connection(holders: dict[str, PodConnections], room: HasRoom | None) -> None:
    given = room_for("me", holders)
    assert isinstance(given, NoRoom) if room is None else given == room


def test_a_pod_is_told_how_many_it_holds() -> None:
    given = room_for("me", {"me": PodConnections(64, 4)})
    assert isinstance(given, NoRoom)
    assert given.why == "its pod holds 64 connections, and no more than 64 are taken of it"


PODS = st.lists(st.integers(0, 60), min_size=1, max_size=30)


@given(PODS, st.lists(st.tuples(st.integers(0, 29), st.integers(1, 80)), max_size=200))
def test_need_is_met_and_bounds_hold_whoever_comes_in_whatever_order(
    processes: list[int], comes: list[tuple[int, int]]
) -> None:
    holders = {str(number): PodConnections(0, needed(count)) for number, count in enumerate(processes)}
    met = sum(holder.needed for holder in holders.values()) <= MAX_CONNECTIONS - MAX_WITHOUT_PART
    for who, times in comes:
        pod = str(who % len(processes))
        for _ in range(times):
            before = holders
            room = room_for(pod, holders)
            if isinstance(room, HasRoom):
                if room.instead:
                    holders = {**holders, room.instead: fewer(holders[room.instead])}
                holders = {**holders, pod: PodConnections(holders[pod].connections + 1, holders[pod].needed)}
            for uid, holder in holders.items():
                assert holder.connections >= min(before[uid].connections, before[uid].needed)
                assert holder.connections <= holder.most
            within_need = before[pod].connections < before[pod].needed
            assert isinstance(room, HasRoom) or not (met and within_need)
    assert sum(holder.connections for holder in holders.values()) <= MAX_CONNECTIONS
    assert sum(holder.connections for holder in holders.values() if not holder.needed) <= MAX_WITHOUT_PART


def fewer(holder: PodConnections) -> PodConnections:
    return PodConnections(holder.connections - 1, holder.needed)


def test_a_process_that_connects_in_a_loop_alone_exceeds_its_rate() -> None:
    rates = ConnectRates()
    assert [rates.exceeds(7, 0.0) for _ in range(int(CONNECTS_AT_ONCE) + 1)] == [*[False] * int(CONNECTS_AT_ONCE), True]
    assert not rates.exceeds(8, 0.0)
    assert sum(not rates.exceeds(7, second / 10_000) for second in range(1, 10_001)) <= CONNECTS_PER_SECOND
    assert not rates.exceeds(7, 60.0)


def test_the_rates_of_a_bounded_number_of_processes_are_kept() -> None:
    rates = ConnectRates()
    for pid in range(10 * MAX_PROCESSES_TIMED):
        rates.exceeds(pid, 0.0)
    assert len(rates._left) <= MAX_PROCESSES_TIMED  # noqa: SLF001 - nothing else shows it
