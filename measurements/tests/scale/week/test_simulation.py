"""Small clusters whose week can be told by hand."""

import pytest

from gpushare.api import names
from gpushare.api.gpushare import Placement
from measurements.scale.week.arrangements import ARRANGEMENTS, divide, most_needed, nodes_of
from measurements.scale.week.demand import DAY, WEEK, Job
from measurements.scale.week.figures import figures, mix, over_seeds
from measurements.scale.week.gpus import ClaimGpus, SlotGpus, claim_capacity, claimed_percent
from measurements.scale.week.simulate import Outcome, Simulation
from measurements.scale.week.trace import Ask, Shape

NODE = Shape(96_000, 393_216, 8)


def pods(count: int, gpus: int, milli: int, arrival: float = 10.0, seconds: float = DAY) -> list[Job]:
    return [Job(Ask(4000, 16_384, gpus, milli), arrival + number, seconds) for number in range(count)]


def run(name: str, jobs: list[Job], nodes: dict[str, int], *, packed: bool = False) -> Outcome:
    """`nodes`: how many nodes of 8 GPUs each pool has."""
    pools = [pool for pool, count in nodes.items() for _ in range(count)]
    ordered = sorted(jobs, key=lambda job: job.arrival)
    return Simulation(ARRANGEMENTS[name], [NODE] * len(pools), pools, ordered, 1, packed=packed).run()


def test_sixteen_halves_fill_eight_gpus_by_slots_and_wait_for_whole_ones() -> None:
    jobs = pods(16, 1, 500)
    by_slots = run("slots", jobs, {"halves": 1, "eighths": 1, "quarters": 1, "whole": 1})
    assert [wait.seconds for wait in by_slots.waits] == [0.0] * 16
    whole = run("whole", jobs, {"whole": 1})
    assert [wait.seconds for wait in whole.waits] == [0.0] * 8 + [pytest.approx(DAY - 8)] * 8


def test_claims_of_their_own_size_share_what_slots_round_up() -> None:
    jobs = pods(24, 1, 330)  # three a GPU by claims; two by slots
    assert all(wait.seconds == 0 for wait in run("claims", jobs, {"parts": 1, "whole": 1}).waits)
    slots = run("slots", jobs, {"halves": 1, "eighths": 1, "quarters": 1, "whole": 1})
    assert sum(wait.seconds > 0 for wait in slots.waits) == 8


def test_spread_pods_leave_no_node_for_eight_gpus_and_packed_ones_do() -> None:
    jobs = [*pods(4, 1, 1000, seconds=WEEK), *pods(1, 8, 1000, arrival=100.0)]
    for packed, waits in ((False, 1), (True, 0)):
        outcome = run("whole", jobs, {"whole": 4}, packed=packed)
        assert sum(wait.seconds > 0 for wait in outcome.waits) == waits
        assert sum(not wait.placed for wait in outcome.waits) == waits


def test_a_small_pod_overtakes_a_large_one_that_does_not_fit() -> None:
    jobs = [
        *pods(1, 4, 1000, arrival=-5.0, seconds=3600.0),
        *pods(1, 4, 1000, arrival=-4.0, seconds=7200.0),
        *pods(1, 8, 1000, arrival=10.0, seconds=3600.0),
        *pods(1, 2, 1000, arrival=20.0, seconds=3600.0),
    ]
    waits = {wait.ask.gpus: wait.seconds for wait in run("whole", jobs, {"whole": 1}).waits}
    assert waits == {8: 7200.0 - 10.0, 2: 3600.0 - 20.0}


def test_of_two_kinds_that_fit_the_one_that_waited_longer_begins() -> None:
    jobs = [
        *pods(1, 8, 1000, arrival=-5.0, seconds=3600.0),
        *pods(1, 5, 1000, arrival=10.0, seconds=3600.0),
        *pods(1, 4, 1000, arrival=20.0, seconds=3600.0),
    ]
    waits = {wait.ask.gpus: wait.seconds for wait in run("whole", jobs, {"whole": 1}).waits}
    assert waits == {5: 3600.0 - 10.0, 4: 7200.0 - 20.0}


@pytest.mark.parametrize(("weight", "waits"), [(1, True), (100, False)])
def test_the_weight_of_gpus_decides_which_node_is_filled(weight: int, waits: bool) -> None:
    # The first pod takes half of the CPU and memory of the one node, or half of the GPUs of the other.
    nodes = [Shape(8_000, 32_768, 8), Shape(96_000, 393_216, 2)]
    jobs = [*pods(1, 1, 1000, arrival=-5.0, seconds=WEEK), *pods(1, 8, 1000)]
    simulation = Simulation(ARRANGEMENTS["whole"], nodes, ["whole"] * 2, jobs, 1, packed=True, gpu_weight=weight)
    assert [wait.seconds > 0 for wait in simulation.run().waits] == [waits]


def test_pods_of_several_gpus_may_have_nodes_of_their_own() -> None:
    arrangement = ARRANGEMENTS["wholeApart"]
    asked = {gpus: arrangement.request(Ask(1, 1, gpus, 1000)).pool for gpus in (1, 2, 8)}
    assert asked == {1: "single", 2: "several", 8: "several"}
    need = most_needed(arrangement, [*pods(3, 2, 1000), *pods(2, 1, 500)])
    assert divide([Shape(1, 1, 2), NODE], need, arrangement.large) == ["single", "several"]


def test_pods_of_one_kind_begin_in_the_order_in_which_they_came() -> None:
    jobs = [*pods(1, 8, 1000, arrival=-1.0, seconds=3600.0), *pods(2, 8, 1000, arrival=100.0, seconds=3600.0)]
    assert [wait.seconds for wait in run("whole", jobs, {"whole": 1}).waits] == [3500.0, 7200.0 - 101.0]


def test_a_week_counts_asked_rounded_and_free_gpus() -> None:
    outcome = run("whole", pods(4, 1, 250, arrival=-10.0, seconds=2 * WEEK), {"whole": 1})
    sample = outcome.samples[-1]
    assert (sample.granted, sample.rounded, sample.in_use, sample.free) == (1.0, 3.0, 4, 4.0)
    assert len(outcome.samples) == 7 * 24


def test_free_gpus_are_unusable_where_the_average_pod_does_not_fit() -> None:
    jobs = [*pods(2, 4, 1000, arrival=-10.0, seconds=2 * WEEK), *pods(1, 8, 1000), *pods(1, 1, 1000, arrival=DAY)]
    outcome = run("whole", jobs, {"whole": 2})  # four are free on each, which eight GPUs cannot use, and one can
    sample = outcome.samples[0]
    assert (sample.free, sample.unusable, sample.scattered) == (8.0, 4.0, 4.0)


def test_free_gpus_beside_too_little_cpu_are_unusable() -> None:
    greedy = Job(Ask(95_000, 16_384, 1, 1000), -10.0, 2 * WEEK)
    outcome = run("claims", [greedy, *pods(1, 1, 1000)], {"whole": 1, "parts": 2})
    sample = outcome.samples[0]  # the pod to come wants 4 CPUs beside its GPU, and 1 is left
    assert (sample.free, sample.without_cpu, sample.elsewhere, sample.scattered) == (23.0, 7.0, 16.0, 0.0)
    shares = figures(outcome, 24)
    assert shares["unusable"] == pytest.approx(shares["withoutCpu"] + shares["elsewhere"] + shares["scattered"])
    assert shares["withoutCpu"] < shares["elsewhere"]


def test_a_wait_of_half_an_hour_is_no_wait_of_an_hour() -> None:
    jobs = [*pods(1, 8, 1000, arrival=-1.0, seconds=3600.0), *pods(1, 8, 1000, arrival=1800.0)]
    waits = figures(run("whole", jobs, {"whole": 1}), 8)
    assert (waits["waited.several"], waits["waitedAnHour.several"]) == (100, 0)
    assert waits["meanWaitMinutes.several"] == 30


def test_figures_are_percent_of_the_gpus_and_of_the_pods() -> None:
    percents = figures(run("whole", pods(16, 1, 500, seconds=WEEK), {"whole": 1}), 8)
    assert percents["waited.parts"] == percents["waitedAnHour.parts"] == percents["neverPlaced.parts"] == 50
    assert percents["gpusInUseAtMost"] == 100
    assert "waited.single" not in percents
    assert over_seeds([{"a": 1.0, "b": 2.0}, {"a": 2.0}]) == {"a": [1.5, 1.0, 2.0]}


def test_a_mix_counts_pods_that_come_and_all_gpu_time_of_the_week() -> None:
    before, late = pods(1, 8, 1000, -DAY, 8 * WEEK), pods(1, 1, 500, WEEK - DAY, 2 * DAY)
    parts_of_mix = mix([*before, *late, *pods(3, 1, 1000, seconds=DAY / 3)])
    assert {kind: part["percentOfPods"] for kind, part in parts_of_mix.items()} == {
        "parts": 25,
        "single": 75,
        "several": 0,
    }
    # GPU days: eight for a week; half a GPU for the week's last day; three for a third of a day.
    assert [part["percentOfGpuTime"] for part in parts_of_mix.values()] == [
        pytest.approx(100 * days / 57.5, abs=0.006) for days in (0.5, 1, 56)
    ]


def test_slots_spread_over_the_gpus_of_a_node_as_the_agent_prefers() -> None:
    gpus = SlotGpus(4, 2, Placement.SPREAD)
    taken = [gpus.take(1) for _ in range(4)]
    assert gpus.held() == [1, 1, 1, 1]
    gpus.give_back(taken[2])
    assert (gpus.held(), gpus.in_use, gpus.room()) == ([1, 1, 0, 1], 3, 5)


def test_packed_slots_fill_a_gpu_first() -> None:
    gpus = SlotGpus(4, 2, Placement.PACK)
    for _ in range(3):
        gpus.take(1)
    assert gpus.held() == [2, 1, 0, 0]


def test_the_week_packs_slots_where_the_scheduler_does() -> None:
    for packed, in_use in ((False, 4), (True, 2)):
        outcome = run("slots", pods(4, 1, 500, -10.0, 2 * WEEK), {"halves": 1}, packed=packed)
        assert outcome.samples[0].in_use == in_use


def test_claims_take_the_first_gpu_with_room() -> None:
    gpus = ClaimGpus(3)
    assert [gpus.take(units) for units in (60, 60, 40, 30)] == [(0, 60), (1, 60), (0, 40), (1, 30)]
    assert (gpus.in_use, gpus.room()) == (2, 100)
    gpus.give_back((0, 60))
    assert gpus.take(50) == (0, 50)


@pytest.mark.parametrize("milli", range(50, 1001, 10))
def test_threads_run_out_before_memory_and_clients_do(milli: int) -> None:
    capacity = claim_capacity()
    together = capacity[names.CAPACITY_THREADS].value // claimed_percent(milli)
    memory = capacity[names.CAPACITY_MEMORY]
    asked = memory.value * milli // 1000 >> 20 << 20
    assert together * memory.consumed_by(asked) <= memory.value
    assert together <= capacity[names.CAPACITY_CLIENTS].value


def test_each_part_of_a_gpu_gets_the_smallest_slot_that_has_it() -> None:
    asked = {milli: ARRANGEMENTS["slots"].request(Ask(1, 1, 1, milli)).pool for milli in (50, 125, 126, 250, 500, 501)}
    assert asked == {
        50: "eighths", 125: "eighths", 126: "quarters", 250: "quarters", 500: "halves", 501: "whole",
    }  # fmt: skip


def test_a_pool_needs_what_runs_at_once_in_its_busiest_moment() -> None:
    jobs = [
        *pods(3, 1, 500, arrival=-10.0, seconds=DAY),
        *pods(3, 1, 500, arrival=2 * DAY, seconds=DAY),
        *pods(1, 8, 1000),
    ]
    assert most_needed(ARRANGEMENTS["slots"], jobs) == {"eighths": 0, "quarters": 0, "halves": 1.5, "whole": 8}


def test_nodes_come_in_the_traces_proportions_with_exactly_the_gpus_wanted() -> None:
    nodes = nodes_of({NODE: 6, Shape(1, 1, 2): 8, Shape(1, 1, 1): 1}, 1000, 1)
    assert sum(node.gpus for node in nodes) == 1000
    assert sum(node.gpus for node in nodes if node.gpus == 8) == pytest.approx(1000 * 48 / 65, abs=8)


def test_pools_get_their_parts_and_large_pods_large_nodes() -> None:
    nodes = [NODE, Shape(1, 1, 2)] * 50
    pools = divide(nodes, {"parts": 300.0, "whole": 100.0}, {"whole"})
    gpus = {
        name: sum(node.gpus for node, mine in zip(nodes, pools, strict=True) if mine == name) for name in set(pools)
    }
    assert gpus["whole"] == pytest.approx(125, abs=8)
    assert {node.gpus for node, mine in zip(nodes, pools, strict=True) if mine == "whole"} == {8}


def test_a_pool_without_a_node_is_told() -> None:
    with pytest.raises(ValueError, match="8 GPUs are too few: no node is left for halves"):
        divide([NODE], {"halves": 1.0, "whole": 100.0}, ())
