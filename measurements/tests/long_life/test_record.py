"""Stretches continue each other, and the page says what the record has."""

from pathlib import Path

import pytest

from measurements.long_life.minutes import Minutes
from measurements.long_life.publish import PAGE, page
from measurements.long_life.record import Record, Stretch, rows

LIVED = Minutes({0: (1, 1), 1: (2, 1)}, {("agent", "memory"): {"c 7-77": {0: 50.0, 1: 51.0}}})


def stretch(broke_off: str = "") -> Stretch:
    steps = {"start": 20, "kill-daemon": 2, "restart-kubelet": 1}
    return Stretch("2026-11-24", 60, 400, 7, "abc", "c", "6.18", 2, steps, broke_off)


def test_a_second_stretch_goes_on_where_the_first_one_ended(tmp_path: Path) -> None:
    Record(tmp_path / "life.json").add(stretch(), LIVED)
    Record(tmp_path / "life.json").add(stretch(), LIVED)
    stored = Record(tmp_path / "life.json").stretches()
    assert stored == [(stretch(), LIVED)] * 2
    memory = rows(stored)["agent", "memory"]
    assert [row.hour for row in memory] == [0, 1 / 60, 1, 1 + 1 / 60]
    assert {row.life for row in memory} == {"c 7-77"}
    assert memory[1].clients == 2


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"stretches": [{}]}'])
def test_a_file_that_is_no_record_is_refused_by_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "life.json").write_text(text)
    with pytest.raises(ValueError, match=r"life.json is no record .* move it away"):
        Record(tmp_path / "life.json").stretches()


def test_the_page_is_what_the_script_writes_from_the_published_record() -> None:
    assert PAGE.read_text() == page(Record().stretches())


def test_the_page_says_how_long_was_lived_and_what_broke_off() -> None:
    points = dict.fromkeys(range(60), 80.0)
    lived = Minutes(dict.fromkeys(points, (1, 1)), {("agent", "threads"): {"c 7-77": points}})
    text = page([(stretch(), lived), (stretch("worker-1 | was harmed"), lived)])
    assert "So far: 2.0 hours, 1 series: 1 flat." in text
    assert "| 2026-11-24 | 60 | 20 | 3 | abc | worker-1 \\| was harmed |" in text


def test_the_page_lists_a_series_that_grows_and_none_that_is_flat() -> None:
    load = dict.fromkeys(range(60), (1.0, 1.0))
    growing = {minute: 50.0 + minute + minute % 2 / 10 for minute in load}
    series = {("agent", "memory"): {"c 7-77": growing}, ("agent", "threads"): {"c 7-77": dict.fromkeys(load, 9.0)}}
    text = page([(stretch(), Minutes(load, series))])
    assert "2 series: 1 flat, 1 grows." in text
    assert "| agent | memory | 94.55 MiB | +60 ± " in text
    assert "| agent | threads |" not in text


def test_the_page_shows_the_memory_of_the_longest_lived_process() -> None:
    aged = {minute: 70.0 + min(minute, 30) / 10 for minute in range(75)}
    lived = Minutes(
        dict.fromkeys(range(75), (1, 1)),
        {("agent", "memory"): {"c 7-77": aged, "c 8-88": dict.fromkeys(range(40), 99.0)}},
    )
    text = page([(stretch(), lived)])
    assert "| part | 0 to 30 min | 30 to 60 min |\n| --- | --- | --- |\n| agent | 71.5 | 73.0 |\n" in text
