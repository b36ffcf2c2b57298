"""A slope is found where there is one, and nothing is claimed of what was watched too shortly."""

import random

import pytest

from measurements.long_life.trend import Row, Trend, Verdict, student, trend


def rows(
    minutes: int,
    slope: float = 0.0,
    noise: float = 0.0,
    alike: float = 0.0,
    by_client: float = 0.0,
    levels: tuple[float, ...] = (80.0,),
) -> list[Row]:
    """`slope` per hour from process to process; `alike`: how much of a minute's noise stays in the next one."""
    chance, made, each, error = random.Random(1), [], minutes // len(levels), 0.0
    for number, level in enumerate(levels):
        for minute in range(each):
            hour, clients = (number * each + minute) / 60, chance.randint(0, 8)
            error = alike * error + chance.gauss(0, noise)
            made.append(Row(hour, level + slope * hour + by_client * clients + error, f"{number}", clients, 2.0))
    return made


def verdict(measured: Trend | None) -> Verdict:
    assert measured is not None
    return measured.verdict


def test_a_constant_is_flat_and_a_leak_grows() -> None:
    assert verdict(trend(rows(60))) is Verdict.FLAT
    leak = trend(rows(360, slope=2.0, noise=1.0))
    assert verdict(leak) is Verdict.GROWS
    assert leak is not None
    assert leak.slope == pytest.approx(2.0, abs=0.2)
    assert leak.hours == pytest.approx(330 / 60)
    assert verdict(trend(rows(360, slope=-2.0, noise=1.0))) is Verdict.FALLS


def test_a_leak_shows_across_processes_that_begin_anew() -> None:
    """Each process begins below the end of the one before it, so that the whole series looks flat or falls."""
    leak = trend(rows(360, slope=2.0, noise=0.3, levels=(80.0, 75.0, 70.0, 65.0)))
    assert verdict(leak) is Verdict.GROWS
    assert leak is not None
    assert leak.lives == 4
    assert leak.slope == pytest.approx(2.0, abs=0.3)


def test_what_clients_need_is_no_growth() -> None:
    need = trend(rows(360, by_client=3.0, noise=0.1))
    assert need is not None
    assert verdict(need) is Verdict.FLAT
    assert abs(need.slope) < 0.05


def test_of_few_or_of_restless_minutes_nothing_is_said() -> None:
    assert trend(rows(39)) is None
    assert verdict(trend(rows(40, noise=5.0))) is Verdict.SHORT


def test_minutes_that_are_alike_are_fewer_than_they_look() -> None:
    restless, sluggish = trend(rows(360, noise=1.0)), trend(rows(360, noise=1.0, alike=0.9))
    assert restless is not None
    assert sluggish is not None
    assert sluggish.margin > 5 * restless.margin


def test_a_slope_lies_within_its_margin_about_as_often_as_it_is_said() -> None:
    within = 0
    for seed in range(200):
        chance, error, made = random.Random(seed), 0.0, []
        for minute in range(240):
            error = 0.7 * error + chance.gauss(0, 1)
            made.append(Row(minute / 60, 80 + error, "1", 3.0, 2.0))
        line = trend(made)
        assert line is not None
        within += abs(line.slope) <= line.margin
    assert within >= 180


@pytest.mark.parametrize(("freedom", "quantile"), [(4, 2.776), (10, 2.228), (100, 1.984)])
def test_students_quantile_is_the_tables(freedom: int, quantile: float) -> None:
    assert student(freedom) == pytest.approx(quantile, rel=0.01)
