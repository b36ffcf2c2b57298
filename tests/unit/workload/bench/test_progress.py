"""The time left: the plan's own estimate, corrected by how long its passes really took."""

from io import StringIO

import pytest

from gpushare_workload.bench.plan import BenchPlan, passes, plan_seconds
from gpushare_workload.bench.progress import RemainingTime, duration_text, pass_text, shown
from gpushare_workload.mps.modes import SharingMode
from tests.unit.workload.results.made_up import SMALL

PLAN = BenchPlan(modes=(SharingMode.MPS, SharingMode.STREAMS), clients=(1, 4), loads=(SMALL,), repeats=2)


def test_nothing_done_leaves_the_estimate_of_the_plan() -> None:
    assert RemainingTime(PLAN, passes(PLAN)).seconds() == pytest.approx(plan_seconds(PLAN))


def test_passes_that_take_twice_as_long_double_what_is_left() -> None:
    same = BenchPlan(modes=(SharingMode.STREAMS,), clients=(4,), loads=(SMALL,), repeats=4)
    left = RemainingTime(same, passes(same))
    left.done(2 * plan_seconds(same) / 4)
    assert left.seconds() == pytest.approx(2 * plan_seconds(same) * 3 / 4)
    for _ in range(3):
        left.done(1.0)
    assert left.seconds() == 0


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (89.4, "89 s"), (90, "2 min"), (3600, "1 h 0 min"), (3900, "1 h 5 min")]
)
def test_a_duration_has_the_unit_that_people_use(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


def test_a_log_gets_a_line_for_each_pass() -> None:
    log, ordered = StringIO(), passes(PLAN)
    with shown(PLAN, log) as progress:
        for bench_pass in ordered[:2]:
            progress.began(bench_pass)
            progress.done(bench_pass)
    lines = log.getvalue().splitlines()
    assert [line[:6] for line in lines] == ["[1/8] ", "[2/8] "]
    assert pass_text(ordered[0]) in lines[0]
    assert lines[0].endswith(" left")


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_bar_with_the_time_left() -> None:
    terminal, ordered = Terminal(), passes(PLAN)
    with shown(PLAN, terminal) as progress:
        for bench_pass in ordered:
            progress.began(bench_pass)
            progress.done(bench_pass)
    text = terminal.getvalue()
    assert "8/8" in text
    assert "0 s left" in text
    assert pass_text(ordered[-1]) in text
