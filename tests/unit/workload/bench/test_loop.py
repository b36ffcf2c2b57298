"""The closed loop of a client, against a clock that only launches and waits move."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare_workload.bench.loop import NS, SPIN_NS, LoopResult, Window, closed_loop


class Machine:
    """A clock that only launches and waits move, each by its nanoseconds."""

    def __init__(self, launch_ns: int = 10, wait_ns: int = 90, now: int = 0) -> None:
        self.now, self.launch_ns, self.wait_ns = now, launch_ns, wait_ns
        self.launched = 0
        self.slept: list[float] = []

    def launch(self) -> None:
        self.launched += 1
        self.now += self.launch_ns

    def wait(self) -> None:
        self.now += self.wait_ns

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += round(seconds * NS)

    def clock(self) -> int:
        self.now += self.waking
        return self.now

    waking = 0

    def run(self, window: Window, lanes: int = 1, asked: Callable[[], bool] = lambda: False) -> LoopResult:
        return closed_loop([self.launch] * lanes, self.wait, window, asked, self.clock, self.sleep)


def test_rounds_count_with_their_part_within_the_window() -> None:
    machine = Machine()
    result = machine.run(Window(begin=0, count_from=1030, end=2070))
    # A round takes 100 ns: 70 ns of the one from 1000 on, nine whole ones, and 70 ns of the one from 2000 on.
    assert result.counted == (pytest.approx(0.7 + 9 + 0.7),)
    assert (result.latencies[0].count, result.latencies[0].least, result.latencies[0].largest) == (11, 100, 100)
    assert result.submitted == machine.launched == 21


@given(
    launch=st.integers(0, 5000),
    wait=st.integers(1, 5000),
    warmup=st.integers(0, 3000),
    length=st.integers(1, 3000),
)
def test_however_long_a_round_its_rate_is_that_of_the_machine(launch: int, wait: int, warmup: int, length: int) -> None:
    result = Machine(launch, wait).run(Window(begin=0, count_from=warmup, end=warmup + length))
    assert result.counted[0] == pytest.approx(length / (launch + wait))
    assert result.latencies[0].count >= 1


def test_lanes_are_launched_together_and_waited_for_together() -> None:
    machine = Machine()
    counted = machine.run(Window(begin=0, count_from=0, end=1000), lanes=3)
    first, _, last = counted.latencies
    # A round of three launches and a wait takes 120 ns; the first lane waits for all of it, the last for 100.
    assert [latency.count for latency in counted.latencies] == [9, 9, 9]
    assert counted.submitted == 9
    assert (first.largest, last.largest) == (120, 100)


def test_a_client_sleeps_until_shortly_before_the_start() -> None:
    machine = Machine()
    machine.waking = 1000
    late = machine.run(Window(begin=10 * SPIN_NS, count_from=10 * SPIN_NS, end=11 * SPIN_NS)).late_ns
    assert machine.slept == [pytest.approx(9 * SPIN_NS / NS, rel=1e-3)]
    assert 0 <= late <= 2000


def test_a_client_that_comes_too_late_says_by_how_much() -> None:
    assert Machine(now=500).run(Window(begin=100, count_from=200, end=1000)).late_ns == 400


def test_a_client_that_is_asked_to_end_does_so_after_the_launch() -> None:
    machine = Machine()
    machine.run(Window(begin=0, count_from=0, end=10**9), asked=lambda: machine.launched == 3)
    assert machine.launched == 3


def test_a_window_begins_with_the_warm_up() -> None:
    assert Window.of(2.0, 0.5, 1.0) == Window(2 * NS, 2 * NS + NS // 2, 3 * NS + NS // 2)
