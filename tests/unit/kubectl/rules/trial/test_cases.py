"""What a trial runs next: upwards until nothing is gained, then every case that worked again."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.kubectl.rules.trial.cases import (
    BARE,
    CaseOutcome,
    Ending,
    TrialCase,
    TrialMode,
    TrialPlan,
    counted,
    next_run,
    why_stopped,
)
from tests.unit.kubectl.rules.trial.made_up import ALONE, case, curve, failed, measured

Answer = Callable[[int, TrialCase], CaseOutcome]


def everything(plan: TrialPlan, answer: Answer) -> list[CaseOutcome]:
    outcomes: list[CaseOutcome] = []
    while (following := next_run(plan, outcomes)) is not None:
        outcomes.append(answer(*following))
        assert len(outcomes) < 1000
    return outcomes


def scaling(repeat: int, trial_case: TrialCase) -> CaseOutcome:
    """A program that gains from every further copy, except in time slices."""
    return measured(trial_case, 100 / trial_case.total if trial_case.mode is TrialMode.SLICES else 90.0, repeat=repeat)


def test_the_first_repeat_goes_up_and_the_others_repeat_what_worked() -> None:
    plan = TrialPlan.of(BARE, [4, 2, 1], 1, 3, 1)
    ran = everything(plan, scaling)
    first = [outcome.case for outcome in ran if outcome.repeat == 0]
    assert first == [ALONE, *(case(mode, 2) for mode in BARE), *(case(mode, 4) for mode in BARE)]
    for repeat in (1, 2):
        again = [outcome.case for outcome in ran if outcome.repeat == repeat]
        assert set(again) == set(first)
        assert again != first
    assert why_stopped(plan, ran) == []


def test_a_program_that_fails_alone_is_not_run_beside_itself() -> None:
    ran = everything(TrialPlan(), lambda repeat, each: failed(each, Ending.FAILED, repeat))
    assert [each.case for each in ran] == [ALONE]


def test_a_mode_in_which_copies_do_not_fit_goes_no_further() -> None:
    def answer(repeat: int, each: TrialCase) -> CaseOutcome:
        return failed(each) if each == case(TrialMode.MPS, 4) else scaling(repeat, each)

    plan = TrialPlan.of(BARE, [2, 4, 8], 1, 2, 1)
    ran = everything(plan, answer)
    assert case(TrialMode.MPS, 8) not in {each.case for each in ran}
    assert case(TrialMode.CAPPED, 8) in {each.case for each in ran}
    assert [each.repeat for each in ran if each.case == case(TrialMode.MPS, 4)] == [0]
    assert why_stopped(plan, ran) == ["4 copies under MPS: out of memory (its last lines)"]


def test_more_copies_are_not_run_once_they_bring_nothing_more() -> None:
    plan = TrialPlan.of([TrialMode.MPS], [2, 4, 8, 16], 1, 1, 1)
    gains = {1: 1.0, 2: 1.8, 4: 1.85, 8: 4.0}
    ran = everything(plan, lambda repeat, each: measured(each, gains[each.total] * 100 / each.total))
    assert [each.case.total for each in ran] == [1, 2, 4]
    assert why_stopped(plan, ran) == ["8, 16 copies were not run: 4 brought less than 5% more than fewer did"]


def test_numbers_above_one_that_did_not_work_are_said_to_be_left_out() -> None:
    plan = TrialPlan.of([TrialMode.MPS], [2, 4], 1, 1, 1)
    ran = everything(plan, lambda repeat, each: failed(each) if each.total > 1 else scaling(repeat, each))
    assert why_stopped(plan, ran)[-1] == "4 copies were not run: 2 did not work"


def test_of_three_programs_each_runs_alone_and_then_all_beside_each_other() -> None:
    ran = everything(TrialPlan.of([TrialMode.MPS], [2], 3, 1, 1), lambda repeat, each: measured(each, 60.0))
    cases = [each.case for each in ran]
    assert [each.copies for each in cases] == [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 1)]
    assert [counted(each) for each in cases] == ["program 1", "program 2", "program 3", "all 3 programs"]


def test_once_nothing_runs_beside_each_other_nothing_runs_again() -> None:
    ran = everything(TrialPlan.of([TrialMode.MPS], [2], 2, 3, 1), lambda repeat, each: (
        failed(each, repeat=repeat) if each.total > 1 else scaling(repeat, each)
    ))  # fmt: skip
    assert [(each.repeat, each.case.total) for each in ran] == [(0, 1), (0, 1), (0, 2)]


def test_a_trial_that_was_interrupted_left_nothing_out_for_a_reason() -> None:
    plan = TrialPlan.of([TrialMode.MPS], [2, 4], 1, 1, 1)
    assert why_stopped(plan, everything(plan, scaling)[:2]) == []


def test_of_a_pair_each_program_runs_alone_first() -> None:
    ran = everything(TrialPlan.of(BARE, [2], 2, 1, 1), lambda repeat, each: measured(each, 60.0))
    alone = [case(TrialMode.ALONE, 1, 0), case(TrialMode.ALONE, 0, 1)]
    assert [each.case for each in ran] == [*alone, *(case(mode, 1, 1) for mode in BARE)]


@given(
    st.sets(st.integers(2, 48), min_size=1, max_size=5),
    st.integers(1, 3),
    st.dictionaries(st.tuples(st.sampled_from(BARE), st.integers(0, 4)), st.sampled_from(list(Ending))),
    st.floats(0.1, 1.0),
)
def test_every_trial_ends_and_repeats_exactly_what_worked(
    copies: set[int], repeats: int, endings: dict[tuple[TrialMode, int], Ending], speed: float
) -> None:
    plan = TrialPlan.of(BARE, sorted(copies), 1, repeats, 1)

    def answer(repeat: int, each: TrialCase) -> CaseOutcome:
        place = plan.copies.index(each.total) if each.total > 1 else -1
        ending = endings.get((each.mode, place), Ending.MEASURED)
        return measured(each, 100 * speed, repeat=repeat) if ending is Ending.MEASURED else failed(each, ending, repeat)

    ran = everything(plan, answer)
    assert len({(each.repeat, each.case) for each in ran}) == len(ran)
    worked = {each.case for each in ran if each.repeat == 0 and each.ending is Ending.MEASURED}
    again = worked if worked - {ALONE} else set()
    for repeat in range(1, repeats):
        assert {each.case for each in ran if each.repeat == repeat} == again
    for mode in BARE:
        counts = [each.case.total for each in ran if each.repeat == 0 and each.case.mode is mode]
        assert counts == list(plan.copies[: len(counts)])
        assert all(case(mode, count) in worked for count in counts[:-1])


@pytest.mark.parametrize(
    ("copies", "programs", "repeats", "words"),
    [
        ([0], 1, 1, "--copies 0: a GPU takes 1 to 48"),
        ([49], 1, 1, "--copies 49"),
        ([1], 1, 1, "--copies 1: name at least one number above 1"),
        ([2], 1, 0, "--repeats 0: 1 to 100"),
        ([2], 1, 101, "--repeats 101"),
    ],
)
def test_a_plan_out_of_bounds_is_refused(copies: list[int], programs: int, repeats: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        TrialPlan.of(BARE, copies, programs, repeats, 1)


def test_a_curve_is_what_it_says() -> None:
    assert [outcome.case.total for outcome in curve([1.5, 2.0])] == [1, 2, 4]
