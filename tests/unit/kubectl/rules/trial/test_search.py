"""The search for what may run beside a service: it finds the most that holds, and answers what it has seen alone."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.kubectl.rules.trial.cases import (
    CaseOutcome,
    Ending,
    TrialCase,
    TrialMode,
    TrialPlan,
    WindowFigures,
)
from gpushare.kubectl.rules.trial.protect import AskedRate, JobWay, ProtectTerms, Slo
from gpushare.kubectl.rules.trial.rows import rows_of
from gpushare.kubectl.rules.trial.search import following, found, next_step, protect_verdict
from gpushare.kubectl.rules.trial.verdict import Answer, TrialVerdict

TERMS = ProtectTerms(Slo(99, 20.0), None, seconds=30.0, best_effort=100)
MOST_RUNS = 40
Latency = Callable[[JobWay], float]


def plan(terms: ProtectTerms = TERMS, repeats: int = 1) -> TrialPlan:
    return TrialPlan((TrialMode.SLOTS,), programs=2, repeats=repeats, protect=terms)


def cluster(
    latency: Latency, served: float = 100.0, alone: float = 5.0, capacity: float = 250.0
) -> Callable[[TrialCase, int], CaseOutcome]:
    """A service of 100 requests/s, with this latency beside the job; the job's speed is its part of the GPU."""

    def run(case: TrialCase, repeat: int) -> CaseOutcome:
        way = case.way
        rate = capacity if case.mode is TrialMode.CAPACITY else served if way else 100.0
        p99 = latency(way) if way else alone
        job = (way.percent / (200 if way.best_effort else 100) if way else 1.0) * 50
        rates = tuple((figure,) * count for figure, count in zip((rate, job), case.copies, strict=True))
        latencies = (p99 if case.copies[0] else None, None)
        return CaseOutcome(case, repeat, Ending.MEASURED, (WindowFigures(rates, latencies, latencies),), used_gpu=True)

    return run


def searched(
    run: Callable[[TrialCase, int], CaseOutcome], of: TrialPlan
) -> tuple[list[CaseOutcome], TrialVerdict, list[JobWay]]:
    """What ran, the verdict, and what holds."""
    outcomes: list[CaseOutcome] = []
    while (next_case := following(of, outcomes)) is not None:
        repeat, case = next_case
        outcomes.append(run(case, repeat))
        assert len(outcomes) <= MOST_RUNS, "the search does not end"
    assert of.protect is not None
    verdict = protect_verdict(of, of.protect, outcomes, rows_of(outcomes), timed=True)
    return outcomes, verdict, found(of, of.protect, outcomes)


def ways(outcomes: list[CaseOutcome]) -> list[str]:
    return [f"{'B' if way.best_effort else 'N'}{way.percent}" for outcome in outcomes if (way := outcome.case.way)]


def test_a_service_that_needs_nothing_gets_a_neighbour_without_a_cap() -> None:
    outcomes, verdict, held = searched(cluster(lambda way: 10.0), plan())
    assert ways(outcomes) == ["N100"]
    assert (verdict.answer, held) == (Answer.HOLDS, [JobWay(False, 100)])
    assert verdict.sentence == (
        "The service keeps its p99 of at most 20 ms beside the job as Normal: 10 ms, alone 5 ms, at 100 requests/s "
        "(1 run). The job keeps 100% of its speed alone."
    )


def test_of_two_classes_that_hold_the_better_for_the_job_is_chosen() -> None:
    """A cap of 25 % leaves the job 25 %, giving way with 75 % leaves it 37.5 %."""
    outcomes, verdict, held = searched(
        cluster(lambda way: 0.25 * way.percent if way.best_effort else 0.7 * way.percent), plan()
    )
    assert held == [JobWay(False, 25), JobWay(True, 75)]
    assert verdict.best is not None
    assert verdict.best.case.way == JobWay(True, 75)
    assert (
        "The job keeps 38% of its speed alone; Normal, capped at 25 % of the threads holds too, and leaves it 25%"
        in (verdict.sentence)
    )
    assert len(ways(outcomes)) <= 8


def test_a_service_that_nothing_protects_is_to_have_a_gpu_of_its_own() -> None:
    _, verdict, held = searched(cluster(lambda way: 1000.0), plan(replace(TERMS, best_effort=0)))
    assert (verdict.answer, verdict.best, held) == (Answer.FAILS, None, [])
    assert "give one of the two a GPU of its own. Whether it holds where the job gives way was not tried" in (
        verdict.sentence
    )


def test_who_is_still_in_the_queue_counts_against_the_objective() -> None:
    """The p99 of those that were served is fine, and a third was not."""
    _, verdict, held = searched(cluster(lambda way: 10.0, served=66.0), plan())
    assert (verdict.answer, held) == (Answer.FAILS, [])


def test_what_fails_in_one_repeat_gives_way_to_less() -> None:
    def run(case: TrialCase, repeat: int) -> CaseOutcome:
        late = repeat == 1 and case.way is not None and case.way.percent > 50
        return cluster(lambda way: 99.0 if late else 10.0)(case, repeat)

    _, verdict, held = searched(run, plan(replace(TERMS, best_effort=0), repeats=3))
    assert held == [JobWay(False, 50)]
    assert "in 3 runs" in verdict.sentence or "(3 runs)" in verdict.sentence


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"alone": 25.0}, "No verdict: alone the service's p99 is 25 ms already, above 20 ms."),
        ({"terms": replace(TERMS, seconds=0.5)}, "No verdict: a window has 50 requests, and a p99 needs at least 100"),
        (
            {"terms": replace(TERMS, rate=AskedRate(per_second=30.0))},
            "No verdict: the service alone did 100 requests/s, and $OFFERED_RATE asked for 30",
        ),
        (
            {"terms": replace(TERMS, rate=AskedRate(percent=20.0))},
            "No verdict: the service alone did 100 requests/s, and $OFFERED_RATE asked for 50",
        ),
    ],
    ids=["misses its objective alone", "too few requests", "another rate than given", "another rate than found"],
)
def test_a_service_that_cannot_be_judged_alone_ends_the_search(changed: dict[str, object], words: str) -> None:
    terms = changed.pop("terms", TERMS)
    assert isinstance(terms, ProtectTerms)
    outcomes, verdict, _ = searched(cluster(lambda way: 1.0, **changed), plan(terms))  # type: ignore[arg-type]
    assert verdict.sentence.startswith(words)
    assert ways(outcomes) == []


def test_a_job_that_never_uses_the_gpu_is_no_neighbour() -> None:
    def run(case: TrialCase, repeat: int) -> CaseOutcome:
        return replace(cluster(lambda way: 1.0)(case, repeat), used_gpu=case.copies != (0, 1))

    outcomes, verdict, _ = searched(run, plan())
    assert verdict.sentence.startswith("No verdict: program 2, alone, never used the GPU")
    assert ways(outcomes) == []


def test_a_rate_in_percent_is_found_by_a_run_without_one() -> None:
    outcomes, verdict, _ = searched(cluster(lambda way: 1.0), plan(replace(TERMS, rate=AskedRate(percent=40.0))))
    assert outcomes[0].case.mode is TrialMode.CAPACITY
    assert verdict.answer is Answer.HOLDS


def test_a_simulated_gpu_has_a_rehearsal_and_no_verdict() -> None:
    outcomes, _, _ = searched(cluster(lambda way: 1.0), plan())
    verdict = protect_verdict(plan(), TERMS, outcomes, rows_of(outcomes), timed=False)
    assert verdict.answer is Answer.UNTIMED
    assert verdict.sentence.startswith("No verdict: the GPU is simulated")
    assert verdict.best is not None


@given(st.integers(1, 12).flatmap(lambda most: st.tuples(st.just(most), st.integers(0, most))))
def test_halving_finds_the_first_that_holds_in_few_steps(sizes: tuple[int, int]) -> None:
    most, first = sizes
    held: list[bool | None] = [None] * most
    tried = 0
    while (place := next_step(held)) is not None and held[place] is None:
        held[place], tried = place >= first, tried + 1
    assert place == (first if first < most else None)
    assert tried <= 1 + most.bit_length()


@given(st.lists(st.booleans(), min_size=1, max_size=8))
def test_figures_that_contradict_each_other_end_in_what_was_seen_to_hold(truth: list[bool]) -> None:
    held: list[bool | None] = [None] * len(truth)
    for _ in range(len(truth) + 1):
        place = next_step(held)
        if place is None or held[place] is not None:
            break
        held[place] = truth[place]
    else:
        raise AssertionError("the search does not end")
    assert place is None or (held[place] and all(known is not False for known in held[place:]))


@given(st.dictionaries(st.tuples(st.booleans(), st.integers(0, 100), st.integers(0, 2)), st.floats(1, 40)))
def test_an_answer_held_in_every_repeat_whatever_was_measured(
    noise: dict[tuple[bool, int, int], float],
) -> None:
    def run(case: TrialCase, repeat: int) -> CaseOutcome:
        way = case.way or JobWay(False, 0)
        return cluster(lambda _: noise.get((way.best_effort, way.percent, repeat), 15.0))(case, repeat)

    outcomes, verdict, held = searched(run, plan(repeats=3))
    assert (verdict.answer is Answer.HOLDS) == bool(held)
    for way in held:
        own = [outcome.windows[0].p99_ms[0] for outcome in outcomes if outcome.case.way == way]
        assert len(own) == 3
        assert all(p99 is not None and p99 <= 20.0 for p99 in own)


@pytest.mark.parametrize(
    ("text", "slo"), [("p99=20ms", Slo(99, 20.0)), ("p50=1.5s", Slo(50, 1500.0)), ("p99=300us", Slo(99, 0.3))]
)
def test_an_objective_is_a_percentile_and_a_time(text: str, slo: Slo) -> None:
    parsed = Slo.parse(text)
    assert parsed.percentile == slo.percentile
    assert parsed.ms == pytest.approx(slo.ms)


@pytest.mark.parametrize("text", ["p99", "p99=20", "p95=20ms", "20ms", "p99=0ms", "p99=-1ms", "p99=1e3ms", ""])
def test_an_objective_in_another_form_is_refused_with_its_value(text: str) -> None:
    with pytest.raises(ValueError, match="--slo ") as refused:
        Slo.parse(text)
    assert repr(text) in str(refused.value)


@pytest.mark.parametrize("text", ["0", "-1", "many", "0%", "99%", "40 %", "1e3", ""])
def test_a_rate_in_another_form_is_refused_with_its_value(text: str) -> None:
    with pytest.raises(ValueError, match="--rate ") as refused:
        AskedRate.parse(text)
    assert repr(text) in str(refused.value)
