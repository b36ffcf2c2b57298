"""Who ran at the same time, from records that are easy to draw."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare_workload.backend.interface import LaunchRecord
from gpushare_workload.events import WrongError
from gpushare_workload.scenarios.sharing import concurrency
from gpushare_workload.scenarios.sharing.concurrency import Concurrency


def record(start: int, end: int, paused: int = 0, resumed: int = 0, sms: int = 0) -> LaunchRecord:
    return LaunchRecord(start, end, paused, resumed, sms)


@pytest.mark.parametrize(
    ("processes", "mean", "most", "busy"),
    [
        ([[record(0, 10)]], 1.0, 1, 1.0),
        ([[record(0, 10), record(20, 30)], [record(10, 20), record(30, 40)]], 1.0, 1, 1.0),
        ([[record(0, 10)], [record(0, 10)]], 2.0, 2, 1.0),
        ([[record(0, 10), record(30, 40)], [record(5, 15), record(35, 45)]], 1.5, 2, 20 / 35),
        ([[record(0, 100, paused=10, resumed=90)], [record(10, 90)]], 1.0, 1, 1.0),
        ([[record(0, 100)], [record(10, 90)]], 2.0, 2, 1.0),
        ([[record(0, 10), record(5, 20)], [record(0, 20)]], 2.0, 2, 1.0),
        ([[record(0, 10), record(50, 60)]], 1.0, 1, 20 / 60),
    ],
    ids=[
        "alone",
        "in turns",
        "together",
        "in part",
        "a slice in mid-kernel",
        "mid-kernel",
        "launches of one process",
        "with a pause",
    ],
)
def test_processes_count_that_run_at_the_same_moment(
    processes: list[list[LaunchRecord]], mean: float, most: int, busy: float
) -> None:
    assert concurrency.of(processes) == Concurrency(pytest.approx(mean), most, pytest.approx(busy))


INTERVALS = st.lists(
    st.tuples(st.integers(0, 50), st.integers(1, 20)).map(lambda pair: record(pair[0], pair[0] + pair[1])),
    min_size=1,
    max_size=8,
)


@given(st.lists(INTERVALS, min_size=1, max_size=4))
def test_the_concurrency_is_that_of_a_count_at_every_moment(processes: list[list[LaunchRecord]]) -> None:
    try:
        begin, end = concurrency.window(processes)
    except WrongError:
        return
    counts = [
        sum(any(launch.start <= moment < launch.end for launch in records) for records in processes)
        for moment in range(begin, end)
    ]
    busy = [count for count in counts if count]
    mean = sum(busy) / len(busy) if busy else 0.0
    expected = Concurrency(pytest.approx(mean), max(counts), pytest.approx(len(busy) / len(counts)))
    assert concurrency.of(processes) == expected


@pytest.mark.parametrize(
    ("processes", "words"),
    [
        ([[record(0, 1)], []], "a process recorded no launch"),
        ([[record(0, 1)], [record(1, 2)]], "no time in common"),
    ],
)
def test_processes_that_cannot_be_compared_are_an_error(processes: list[list[LaunchRecord]], words: str) -> None:
    with pytest.raises(WrongError, match=words):
        concurrency.of(processes)


def test_the_sms_of_each_process_and_those_of_several() -> None:
    used = concurrency.sms(
        [[record(0, 1, sms=0b0011), record(1, 2, sms=0b0100)], [record(0, 1, sms=1 << 131 | 0b0100)]]
    )
    assert used == [{0, 1, 2}, {2, 131}]
    assert concurrency.of_several(used) == {2}


def test_a_timeline_is_bounded_in_time_and_in_launches() -> None:
    processes = [[record(start, start + 1000) for start in range(0, 20_000, 2000)] for _ in range(2)]
    pieces = concurrency.timeline(processes, most_us=4.0, launches=3)
    assert pieces == [(0, 0.5, 1.5), (1, 0.5, 1.5), (0, 2.5, 3.5)]


def test_what_runs_when_a_timeline_begins_is_in_it() -> None:
    whole, middle = [record(0, 4000)], [record(0, 1000), record(1500, 2500), record(3000, 4000)]
    pieces = concurrency.timeline([whole, middle], most_us=4.0, launches=9)
    assert pieces == [(1, 0.0, 0.5), (0, 0.0, 2.0), (1, 1.0, 2.0)]
