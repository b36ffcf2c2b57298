"""The order of the runs: every case in every repeat, compared modes side by side, the same order for the same seed."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare_workload.backend.work import Grid, Load, LoadKind
from gpushare_workload.bench.plan import BenchPlan, pass_seconds, passes, plan_seconds
from gpushare_workload.mps.modes import SharingMode
from tests.unit.workload.results.made_up import SMALL

PLANS = st.builds(
    BenchPlan,
    modes=st.lists(st.sampled_from(SharingMode), min_size=1, unique=True).map(tuple),
    clients=st.lists(st.integers(1, 48), min_size=1, max_size=5, unique=True).map(tuple),
    repeats=st.integers(1, 4),
    seed=st.integers(),
)


@given(PLANS)
def test_every_repeat_has_every_case_once(plan: BenchPlan) -> None:
    seen = [(each.repeat, each.mode, each.clients, load) for each in passes(plan) for load in each.loads]
    wanted = {
        (repeat, mode, clients, load)
        for repeat in range(plan.repeats)
        for mode in plan.modes
        for clients in plan.clients
        for load in plan.loads
    }
    assert len(seen) == len(wanted)
    assert set(seen) == wanted


@given(PLANS)
def test_modes_that_are_compared_run_next_to_each_other(plan: BenchPlan) -> None:
    ordered = passes(plan)
    width = len(plan.modes)
    for first in range(0, len(ordered), width):
        side_by_side = ordered[first : first + width]
        assert len({(each.repeat, each.clients) for each in side_by_side}) == 1
        assert {each.mode for each in side_by_side} == set(plan.modes)


def test_a_seed_gives_the_same_order_and_repeats_differ() -> None:
    plan = BenchPlan(seed=7)
    assert passes(plan) == passes(BenchPlan(seed=7))
    assert passes(plan) != passes(BenchPlan(seed=8))
    by_repeat = [
        [(each.mode, each.clients) for each in passes(plan) if each.repeat == repeat] for repeat in range(plan.repeats)
    ]
    assert len({tuple(order) for order in by_repeat}) > 1


@pytest.mark.parametrize(
    ("mode", "clients", "threads"),
    [
        (SharingMode.MPS, 8, 100.0),
        (SharingMode.MPS_EQUAL_CAPS, 8, 12.5),
        (SharingMode.MPS_EQUAL_CAPS, 1, 100.0),
        (SharingMode.TIME_SLICING, 8, None),
        (SharingMode.STREAMS, 8, None),
    ],
)
def test_equal_caps_divide_the_gpu_and_only_mps_caps_at_all(
    mode: SharingMode, clients: int, threads: float | None
) -> None:
    (bench_pass,) = passes(BenchPlan(modes=(mode,), clients=(clients,), loads=(SMALL,), repeats=1))
    assert bench_pass.threads == threads
    assert bench_pass.processes == (1 if mode is SharingMode.STREAMS else clients)


@given(PLANS)
def test_the_estimate_is_the_sum_of_its_passes_and_grows_with_the_window(plan: BenchPlan) -> None:
    assert plan_seconds(plan) == pytest.approx(sum(pass_seconds(plan, each) for each in passes(plan)))
    longer = BenchPlan(plan.modes, plan.clients, plan.loads, plan.repeats, plan.warmup, plan.window + 1, seed=plan.seed)
    runs = plan.repeats * len(plan.modes) * len(plan.clients) * len(plan.loads)
    assert plan_seconds(longer) - plan_seconds(plan) == pytest.approx(runs)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"modes": ()}, "modes: nothing to measure"),
        ({"clients": (2, 2)}, "clients 2 2: one is named twice"),
        ({"clients": (49,)}, "clients 49: a GPU takes 1 to 48 MPS clients"),
        ({"clients": (0,)}, "clients 0"),
        ({"loads": (Load(LoadKind.COMPUTE, Grid.SMALL, 0),)}, "depths 0: 1 to 1024 launches between two waits"),
        ({"loads": (Load(LoadKind.COMPUTE, Grid.SMALL, 1025),)}, "depths 1025"),
        ({"repeats": 0}, "repeats 0: at least 1"),
        ({"warmup": -1.0}, "warmup -1"),
        ({"window": 0.0}, "seconds 0"),
        ({"threads": 101.0}, "threads 101: a percentage"),
    ],
)
def test_a_plan_that_cannot_be_run_names_the_value(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        BenchPlan(**options).check()
