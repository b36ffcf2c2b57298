"""Open-loop load: arrivals, latencies that count the queue, and what is left over."""

import argparse
import itertools
from typing import Any

import numpy as np
import pytest

from gpushare_workload.processes.stopping import Stop
from gpushare_workload.scenarios.sharing import serve
from gpushare_workload.scenarios.sharing.serve import percentiles, poisson_arrivals
from tests.unit.clock import Clock
from tests.unit.workload.scenarios.sharing.running import runner


class Waiting(Stop):
    """Waits by moving the clock; the process is asked to end at `end`."""

    def __init__(self, clock: Clock, end: float = float("inf")) -> None:
        super().__init__()
        self._clock, self._end = clock, end

    def wait(self, seconds: float) -> bool:
        self._clock.now += max(0.0, seconds)
        return self._clock.now >= self._end


def served(due: list[float], service: float, limit: float = 100.0, end: float = float("inf")) -> serve.ServedRequests:
    clock = Clock(0.0)

    def request() -> None:
        clock.now += service

    return serve.serve(due, request, Waiting(clock, end), limit, clock=clock)


def test_a_request_that_waits_counts_from_when_it_was_due() -> None:
    # Due at 0, 1 and 2 seconds; each takes 3: they end at 3, 6 and 9.
    assert served([0.0, 1.0, 2.0], service=3.0).latencies == [3.0, 5.0, 7.0]


def test_the_service_time_knows_no_queue() -> None:
    assert served([0.0, 1.0, 2.0], service=3.0).services == [3.0, 3.0, 3.0]


def test_no_request_is_sent_before_it_is_due() -> None:
    assert served([5.0, 50.0], service=1.0).latencies == [1.0, 1.0]


def test_requests_left_over_count_with_the_time_that_they_have_waited() -> None:
    # Four seconds are over after the second request; the third has waited since 2, the fourth is not due yet.
    left = served([0.0, 1.0, 2.0, 9.0], service=3.0, limit=4.0)
    assert left.unserved == 1
    assert left.latencies == [3.0, 5.0, 4.0]


def test_a_signal_ends_it_between_two_requests() -> None:
    left = served([0.0, 1.0, 2.0], service=0.5, end=1.0)
    assert (len(left.services), left.unserved) == (1, 1)


def test_nothing_due_is_nothing_served() -> None:
    assert served([], service=1.0) == serve.ServedRequests()


def test_percentiles_are_samples_by_nearest_rank() -> None:
    hundred = [number / 1000 for number in range(1, 101)]
    assert percentiles(hundred) == {"p50_ms": 50.0, "p90_ms": 90.0, "p99_ms": 99.0, "max_ms": 100.0}
    assert percentiles([0.002]) == {"p50_ms": 2.0, "p90_ms": 2.0, "p99_ms": 2.0, "max_ms": 2.0}
    assert set(percentiles([]).values()) == {None}


def test_arrivals_are_in_order_within_the_time_and_the_same_for_one_seed() -> None:
    times = poisson_arrivals(50.0, 4.0, seed=3)
    assert all(before < after for before, after in itertools.pairwise([0.0, *times, 4.0]))
    assert np.array_equal(times, poisson_arrivals(50.0, 4.0, seed=3))
    assert not np.array_equal(times, poisson_arrivals(50.0, 4.0, seed=4))


def test_arrivals_have_the_rate_and_the_spread_of_a_poisson_process() -> None:
    gaps = np.diff(poisson_arrivals(1000.0, 100.0, seed=1))
    assert gaps.mean() == pytest.approx(1e-3, rel=0.02)
    assert gaps.std() == pytest.approx(1e-3, rel=0.02)


@pytest.mark.parametrize("rate", [0.001, 0.5])
def test_rare_requests_may_not_come_at_all(rate: float) -> None:
    assert len(poisson_arrivals(rate, 0.01, seed=1)) == 0


def test_what_was_served_is_told_with_how_busy_the_gpu_was() -> None:
    started, told = runner(serve, {"rate": 50.0, "duration": 0.2, "iterations": 1})()
    assert (started["event"], told["event"], told["unserved"]) == ("started", "measured", 0)
    assert told["requests"] == started["requests"]
    assert told["gpu_busy_percent"] is None  # without a GPU


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rate": 0.0}, "--rate 0.0: must be more than 0"),
        ({"rate": float("nan")}, "--rate nan"),
        ({"duration": -1.0}, "--duration -1.0"),
        ({"rate": 1e9, "duration": 100.0}, "at most 10000000 requests"),
        ({"warmup": -1}, "--warmup -1: must be at least 0"),
        ({"iterations": 0}, "--iterations 0: must be at least 1"),
        ({"iterations": 1 << 24}, "to stay exact"),
        ({"start_at": "noon"}, "--start-at 'noon'"),
    ],
)
def test_a_bad_argument_names_itself_and_its_value(options: dict[str, Any], words: str) -> None:
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    arguments = argparse.Namespace(backend="numpy", seed=1, **vars(parser.parse_args([])) | options)
    with pytest.raises(ValueError, match=words):
        serve.run(arguments, None, Stop())  # type: ignore[arg-type]
