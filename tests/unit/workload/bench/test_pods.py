"""A benchmark of several pods: what each needs to know, and moments that all compute alike."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare_workload.bench.plan import BenchPlan
from gpushare_workload.bench.pods import Pods, begins, duration, pods_of
from gpushare_workload.mps.modes import SharingMode
from gpushare_workload.results.document import Group

ONE_MODE = BenchPlan(modes=(SharingMode.MPS,), clients=(1,))


def test_a_pod_takes_its_number_from_the_indexed_job() -> None:
    pods = pods_of(8, None, 1000.0, ONE_MODE, {"JOB_COMPLETION_INDEX": "5"})
    assert pods == Pods(Group("8 pods from 1000", 5, 8), 1000.0)


def test_one_process_alone_needs_nothing() -> None:
    assert pods_of(1, None, None, BenchPlan(), {}) is None


@pytest.mark.parametrize(
    ("count", "index", "start_at", "plan", "words"),
    [
        (1, None, 5.0, ONE_MODE, "--start-at: is the common start of several pods"),
        (0, 0, 5.0, ONE_MODE, "--pods 0: at least 1"),
        (8, None, 5.0, ONE_MODE, "--pod: which pod is this"),
        (8, 8, 5.0, ONE_MODE, "--pod 8: pods count from 0, and there are 8"),
        (8, 0, None, ONE_MODE, "give the time with --start-at"),
        (8, 0, 5.0, BenchPlan(), "in one mode, with one number of clients"),
    ],
)
def test_what_several_pods_need_is_asked_for(
    count: int, index: int | None, start_at: float | None, plan: BenchPlan, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        pods_of(count, index, start_at, plan, {})


@given(st.integers(1, 4), st.floats(0.1, 5), st.floats(0, 2))
def test_runs_begin_one_after_the_other_with_time_between_them(repeats: int, window: float, warmup: float) -> None:
    plan = BenchPlan(modes=(SharingMode.MPS,), clients=(1,), repeats=repeats, window=window, warmup=warmup)
    pods = Pods(Group("g", 0, 2), 1000.0)
    moments = [begins(pods, plan, repeat, number) for repeat in range(repeats) for number in range(len(plan.loads))]
    assert moments[0] == 1000.0
    assert moments[-1] + window + warmup <= 1000.0 + duration(plan)
    assert all(later - earlier > window + warmup + 1 for earlier, later in pairwise(moments))
