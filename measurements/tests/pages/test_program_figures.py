"""Pods beside processes: whose time slices they are divided by, and what an asterisk marks."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpushare.kubectl.rules.trial.cases import CaseOutcome, TrialMode, TrialPlan
from gpushare.kubectl.rules.trial.options import RunTimes
from gpushare.kubectl.rules.trial.records import TrialRecord
from gpushare_workload.results.comparison import Comparison
from measurements.gpu.programs.compare import PARTS
from measurements.gpu.programs.figures import (
    GPU_OF_OLD_TRIALS,
    PodTrial,
    against_slices,
    gains,
    pairs,
    pod_trials,
)
from tests.unit.kubectl.rules.trial.made_up import ALONE, case, measured

BERT = next(part for part in PARTS if part.name == "bert")
HERE, OTHER = "GPU-here", "GPU-other"
TIMES = RunTimes(0.6, 2.0, 60.0)


def processes(uuid: str, slices: float, *others: CaseOutcome, copies: int = 2) -> Comparison:
    """Processes of which each copy did `slices` per second in time slices."""
    outcomes = (measured(ALONE, 100.0), measured(case(TrialMode.SLICES, copies), slices), *others)
    environment = {"gpu": {"uuid": uuid, "product": "NVIDIA H100"}}
    return Comparison(TrialRecord([["bert.py"]], TrialPlan(), TIMES, outcomes, timed=True, environment=environment))


def with_outcomes(comparison: Comparison, outcomes: tuple[CaseOutcome, ...]) -> Comparison:
    return replace(comparison, record=replace(comparison.record, outcomes=outcomes))


def pods(rate: float, busy: float | None = 99.0) -> PodTrial:
    """Two pods on HERE, each of which did `rate` per second."""
    together = replace(measured(case(TrialMode.SLOTS, 2), rate), busy_percent=busy)
    record = TrialRecord([["bert.py"]], TrialPlan(), TIMES, [measured(ALONE, 100.0), together], timed=True)
    return PodTrial("bert", "pods", HERE, record)


def of_slices(trial: PodTrial, *bare: Comparison) -> str:
    """The quotient of the two pods, with an asterisk where the time slices are another machine's."""
    [single, pair], elsewhere = against_slices(trial, bare)
    assert single.of_slices is None, "one pod has no time slices"
    return pair.of_slices.text() + "*" * (pair.case in elsewhere) if pair.of_slices else "–"


def store(folder: Path, bare: Comparison, trials: dict[str, dict[str, Any]]) -> None:
    """Stores results as measurements/results has them."""
    (folder / "h100").mkdir(exist_ok=True)
    (folder / "h100/compare-bert.json").write_text(json.dumps(bare.as_json()))
    (folder / "h100/stack-programs.json").write_text(json.dumps({"programs": trials}))


def test_time_slices_of_the_same_gpu_go_before_those_of_another() -> None:
    assert of_slices(pods(40.0), processes(OTHER, 10.0), processes(HERE, 20.0)) == "2.00"


def test_an_asterisk_marks_time_slices_of_another_gpu() -> None:
    elsewhere = processes(OTHER, 10.0)
    assert of_slices(pods(40.0), elsewhere) == "4.00*"
    assert of_slices(pods(40.0), processes(HERE, 20.0, copies=4), elsewhere) == "4.00*", "other copies say nothing"


@pytest.mark.parametrize(
    ("busy", "quotient"), [(90.0, "4.00*"), (89.9, "–"), (None, "–")], ids=["busy", "waits", "unknown"]
)
def test_pods_that_wait_for_their_host_are_divided_by_no_other_machines(busy: float | None, quotient: str) -> None:
    assert of_slices(pods(40.0, busy), processes(OTHER, 10.0)) == quotient
    assert of_slices(pods(40.0, busy), processes(HERE, 10.0)) == "4.00"


def test_a_trial_ran_on_the_gpu_that_it_stored_or_else_on_a_known_one(tmp_path: Path) -> None:
    answer = pods(40.0).record.as_json()
    store(tmp_path, processes(HERE, 20.0), {"bert": answer, "bert-4": answer | {"gpu": HERE}})
    old, further = pod_trials(BERT, tmp_path / "h100")
    assert old.gpu == GPU_OF_OLD_TRIALS["h100", "bert"]
    assert old.ran_elsewhere(processes(HERE, 20.0))
    assert not old.ran_elsewhere(processes(old.gpu, 20.0))
    assert further.gpu == HERE
    assert not further.ran_elsewhere(processes(HERE, 20.0))


def test_a_trial_that_stored_its_gpu_is_no_old_one_of_that_name(tmp_path: Path) -> None:
    store(tmp_path, processes(HERE, 20.0), {"bert": pods(40.0).record.as_json() | {"gpu": HERE}})
    [trial] = pod_trials(BERT, tmp_path / "h100")
    assert trial.gpu == HERE


def test_a_trial_of_which_nobody_knows_the_gpu_is_an_error(tmp_path: Path) -> None:
    store(tmp_path, processes(HERE, 20.0), {"bert-4": pods(40.0).record.as_json()})
    with pytest.raises(KeyError, match="bert-4"):
        list(pod_trials(BERT, tmp_path / "h100"))


def test_the_gain_of_pods_is_that_of_the_parts_own_trial(tmp_path: Path) -> None:
    bare = processes(HERE, 20.0, measured(case(TrialMode.MPS, 2), 50.0))
    further, own = (pods(rate).record.as_json() | {"gpu": HERE} for rate in (60.0, 40.0))
    store(tmp_path, bare, {"bert-4": further, "bert": own})
    [gain] = gains(tmp_path / "h100")
    assert gain.pods is not None
    assert (gain.processes.median, gain.pods.median, gain.elsewhere) == (2.5, 2.0, False)


def test_the_gain_of_pods_that_ran_elsewhere_is_marked(tmp_path: Path) -> None:
    bare = processes(OTHER, 20.0, measured(case(TrialMode.MPS, 2), 50.0))
    store(tmp_path, bare, {"bert": pods(40.0).record.as_json() | {"gpu": HERE}})
    [gain] = gains(tmp_path / "h100")
    assert gain.elsewhere


def test_a_part_that_only_a_further_trial_ran_as_pods_has_no_gain_of_pods(tmp_path: Path) -> None:
    bare = processes(HERE, 20.0, measured(case(TrialMode.MPS, 2), 50.0))
    store(tmp_path, bare, {"bert-4": pods(40.0).record.as_json() | {"gpu": HERE}})
    [gain] = gains(tmp_path / "h100")
    assert gain.pods is None


def test_the_gain_is_of_the_most_copies_that_ran_as_pods_too(tmp_path: Path) -> None:
    more = [measured(case(TrialMode.SLICES, 8), 5.0), measured(case(TrialMode.MPS, 8), 15.0)]
    bare = processes(HERE, 20.0, measured(case(TrialMode.MPS, 2), 50.0), *more)
    store(tmp_path, bare, {"bert": pods(40.0).record.as_json() | {"gpu": HERE}})
    assert [gain.copies for gain in gains(tmp_path / "h100")] == ["2"]
    store(tmp_path, bare, {})
    assert [gain.copies for gain in gains(tmp_path / "h100")] == ["8"]


def test_copies_that_ran_both_ways_on_one_machine_go_before_more_on_two(tmp_path: Path) -> None:
    mps = [measured(case(TrialMode.MPS, copies), 50.0) for copies in (2, 4)]
    four = replace(measured(case(TrialMode.SLOTS, 4), 40.0), busy_percent=99.0)
    trial = pods(40.0)
    trial = replace(trial, record=replace(trial.record, outcomes=[*trial.record.outcomes, four]))
    store(tmp_path, processes(HERE, 20.0, mps[0]), {"bert": trial.record.as_json() | {"gpu": HERE}})
    other = processes(OTHER, 10.0, mps[1], copies=4)
    (tmp_path / "h100/compare-bert-4.json").write_text(json.dumps(other.as_json()))
    [gain] = gains(tmp_path / "h100")
    assert (gain.copies, gain.elsewhere) == ("2", False)


def test_processes_that_ran_more_than_once_go_before_all_others(tmp_path: Path) -> None:
    mps = measured(case(TrialMode.MPS, 2), 50.0)
    store(tmp_path, processes(HERE, 20.0, mps), {"bert": pods(40.0).record.as_json() | {"gpu": HERE}})
    again = [replace(outcome, repeat=1) for outcome in (*processes(OTHER, 10.0).record.outcomes, mps)]
    twice = processes(OTHER, 10.0, mps, *again)
    (tmp_path / "h100/compare-bert-2.json").write_text(json.dumps(twice.as_json()))
    [gain] = gains(tmp_path / "h100")
    assert (gain.runs, gain.processes.median, gain.elsewhere) == ((2,), 5.0, True)


def test_machines_with_as_many_repeated_processes_are_shown_together(tmp_path: Path) -> None:
    def twice(uuid: str, *mps: float) -> Comparison:
        runs = [measured(case(TrialMode.MPS, 2), rate) for rate in mps]
        first, second = (processes(uuid, 20.0, run).record.outcomes for run in runs)
        return with_outcomes(processes(uuid, 20.0), (*first, *(replace(outcome, repeat=1) for outcome in second)))

    store(tmp_path, twice(HERE, 40.0, 44.0), {})
    (tmp_path / "h100/compare-bert-2.json").write_text(json.dumps(twice(OTHER, 60.0, 56.0).as_json()))
    [gain] = gains(tmp_path / "h100")
    assert gain.runs == (2, 2)
    assert gain.processes.text() == "2.50 (2.00–3.00)"
    assert gain.alone is not None
    assert gain.alone.text() == "1.00 (0.80–1.20)"


def test_nothing_is_told_against_one_alone_that_was_slow_in_some_windows(tmp_path: Path) -> None:
    bare = processes(HERE, 20.0, measured(case(TrialMode.MPS, 2), 40.0))
    for rates, told in (((80.0, 100.0), True), ((79.0, 100.0), False)):
        outcomes = (measured(ALONE, *rates), *bare.record.outcomes[1:])
        store(tmp_path, with_outcomes(bare, outcomes), {})
        [gain] = gains(tmp_path / "h100")
        assert (gain.alone is not None) is told


@pytest.mark.parametrize(
    ("rates", "alone"), [((90.0, 104.0), True), ((90.0, 106.0), False), ((120.0, 120.0), False)],
    ids=["within what two can do", "above it in one window", "above it"],
)  # fmt: skip
def test_work_above_what_the_copies_allow_is_not_told_against_one_alone(
    tmp_path: Path, rates: tuple[float, ...], alone: bool
) -> None:
    store(tmp_path, processes(HERE, 20.0, measured(case(TrialMode.MPS, 2), *rates)), {})
    [gain] = gains(tmp_path / "h100")
    assert (gain.alone is not None) is alone


def test_a_gain_of_processes_on_another_machine_than_the_pods_is_marked(
    tmp_path: Path,
) -> None:
    store(tmp_path, processes(HERE, 20.0), {"bert": pods(40.0).record.as_json() | {"gpu": HERE}})
    other = processes(OTHER, 10.0, measured(case(TrialMode.MPS, 2), 50.0))
    (tmp_path / "h100/compare-bert-2.json").write_text(json.dumps(other.as_json()))
    [gain] = gains(tmp_path / "h100")
    assert gain.pods is not None
    assert (gain.pods.median, gain.elsewhere) == (2.0, True)


@pytest.mark.parametrize(
    ("busy", "full"), [((99.0, 99.0), True), ((98.9, 99.0), False), ((99.0, 98.9), False)],
    ids=["full", "pods-wait", "processes-wait"],
)  # fmt: skip
def test_what_a_pod_costs_is_told_by_as_many_processes_on_the_same_gpu(
    tmp_path: Path, busy: tuple[float, float], full: bool
) -> None:
    under_mps = replace(measured(case(TrialMode.MPS, 2), 50.0), busy_percent=busy[1])
    trials = {"bert": pods(40.0, busy[0]).record.as_json() | {"gpu": HERE}}
    store(tmp_path, processes(HERE, 20.0, under_mps), trials)
    alone, two = pairs(tmp_path)
    assert (alone.copies, alone.quotient) == (1, 1.0)
    assert (two.copies, two.quotient, two.full, two.gpu) == (2, 0.8, full, "H100 here")
    store(tmp_path, processes(OTHER, 20.0, under_mps), trials)
    assert list(pairs(tmp_path)) == []
