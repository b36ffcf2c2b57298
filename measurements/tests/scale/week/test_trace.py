"""The trace's files as they are, and what is said where they are not."""

from pathlib import Path

import pytest

from measurements.scale.week.demand import DAY, WEEK, week
from measurements.scale.week.trace import NODES, PODS, Ask, Run, Shape, Trace, read

HEADER = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time"
GOOD = "a,4000,15258,1,220,,BE,Running,100,900,130"
ASK = Ask(1000, 1024, 1, 500)


def written(directory: Path, *pods: str) -> Path:
    (directory / PODS).write_text("\n".join((HEADER, *pods)) + "\n")
    (directory / NODES).write_text("sn,cpu_milli,memory_mib,gpu,model\nn1,96000,393216,8,G2\nn2,96000,393216,8,G2\n")
    return directory


def test_a_run_begins_when_its_pod_was_scheduled(tmp_path: Path) -> None:
    never = "b,4000,15258,1,1000,,LS,Pending,100,200,"
    without_gpu = "c,4000,15258,0,0,,LS,Running,100,200,100"
    trace = read(written(tmp_path, GOOD, never, without_gpu))
    assert trace.runs == (Run(Ask(4000, 15258, 1, 220), 100.0, 130.0, 900.0),)
    assert trace.never_started == 1
    assert trace.shapes == {Shape(96000, 393216, 8): 2}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("b,4000,15258,1,2200,,BE,Running,100,900,130", "1 GPUs of 2200 thousandths"),
        ("b,4000,15258,2,500,,BE,Running,100,900,130", "2 GPUs of 500 thousandths"),
        ("b,4000,15258,1,220,,BE,Running,100,120,130", "its times are not in order"),
        ("b,much,15258,1,220,,BE,Running,100,900,130", "much"),
        ("b,4000", "int"),
    ],
)
def test_a_value_that_cannot_be_is_told_with_its_line(tmp_path: Path, line: str, why: str) -> None:
    with pytest.raises(ValueError, match=rf"{PODS}, line 3: .*{why}"):
        read(written(tmp_path, GOOD, line))


def trace_of(*runs: Run) -> Trace:
    return Trace(runs, {Shape(96000, 393216, 8): 1}, 0, {})


def test_copies_are_added_until_the_week_asks_for_its_load() -> None:
    demand = week(trace_of(Run(ASK, 0.0, 0.0, 40 * DAY)), gpus=100, load=0.8, seed=1)
    assert demand.copies == 160  # of half a GPU each, all week
    assert demand.asked == pytest.approx(80)
    assert all(job.arrival < 0 and job.seconds >= WEEK for job in demand.jobs)


def test_a_pod_that_ran_before_the_week_has_only_the_rest_of_its_run_left() -> None:
    steady, early = Run(ASK, 0.0, 0.0, 40 * DAY), Run(ASK, 6 * DAY, 6 * DAY, 8 * DAY)
    demand = week(trace_of(steady, early), gpus=1000, load=0.8, seed=1)
    rests = [job for job in demand.jobs if job.seconds < 2 * DAY and job.arrival < 0]
    assert rests
    assert all(job.seconds > 0 for job in demand.jobs)
    assert all(job.arrival + 2 * DAY == pytest.approx(job.seconds) for job in rests)


def test_a_pod_that_comes_in_the_week_comes_at_its_hour_of_the_day() -> None:
    steady, late = Run(ASK, 0.0, 0.0, 40 * DAY), Run(ASK, 20.5 * DAY, 20.5 * DAY, 20.6 * DAY)
    demand = week(trace_of(steady, late), gpus=1000, load=0.5, seed=1)
    hours = [(job.arrival % DAY) / 3600 for job in demand.jobs if job.arrival >= 0]
    assert hours
    assert all(11.4 < hour <= 12 for hour in hours)


def test_the_same_seed_gives_the_same_week_and_another_one_another() -> None:
    trace = trace_of(Run(ASK, 0.0, 0.0, 40 * DAY), Run(ASK, 20 * DAY, 20 * DAY, 21 * DAY))
    first, again, other = (week(trace, gpus=50, load=0.8, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_a_trace_that_is_too_short_is_refused() -> None:
    with pytest.raises(ValueError, match="shorter than a week"):
        week(trace_of(Run(ASK, 0.0, 0.0, DAY)), gpus=10, load=0.5, seed=1)
