"""A campaign goes on from what is published, and the page says what the published file has."""

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.faults.points import Point
from tests.faults.publish import PAGE, page
from tests.faults.record import ENDED, NOT_REACHED, SAME, STORED, Record, Result

OPEN, REPLACE = Point("agent: open it", partly=False), Point("agent: replace it", partly=True)
SCENE, OTHER, CODE = "a scene", "another scene", "1234"


def result(point: Point, outcome: str = SAME, when: str = "before") -> Result:
    return Result(SCENE, point.text, when, outcome, 0, (), 40.0, "2026-11-23")


def played(path: Path) -> Record:
    """The record as another campaign finds it."""
    Record(path).add_scene(SCENE, Counter({OPEN: 1, REPLACE: 3}), 40.0, CODE)
    return Record(path)


def test_another_campaign_knows_the_points_and_ends_of_the_stored_one(tmp_path: Path) -> None:
    played(tmp_path / "points.json").add([result(OPEN), result(REPLACE, ENDED, "middle")])
    again = Record(tmp_path / "points.json")
    assert [(point, point.partly) for point in again.points(SCENE, CODE)] == [(OPEN, False), (REPLACE, True)]
    assert again.settled() == {(OPEN.text, "before"), (REPLACE.text, "middle")}
    again.add([result(OPEN, NOT_REACHED, "after")])
    assert len(Record(tmp_path / "points.json").settled()) == 3


def test_a_different_result_is_tried_again_and_replaces_the_earlier_one(tmp_path: Path) -> None:
    record = played(tmp_path / "points.json")
    record.add([result(OPEN, "a client was harmed")])
    assert not record.settled()
    record.add([result(OPEN)])
    assert Record(tmp_path / "points.json").settled() == {(OPEN.text, "before")}


def test_a_scene_whose_code_changed_is_played_again_and_forgets_old_points(
    tmp_path: Path,
) -> None:
    record = played(tmp_path / "points.json")
    record.add_scene(OTHER, Counter({REPLACE: 1}), 40.0, CODE)
    record.add([result(OPEN), result(REPLACE)])
    assert record.points(SCENE, "newer") == []
    record.add_scene(SCENE, Counter({Point("agent: remove it"): 1}), 40.0, "newer")
    assert [point.text for point in record.points(SCENE, "newer")] == ["agent: remove it"]
    assert record.points(OTHER, CODE) == [REPLACE]
    assert record.settled() == {(REPLACE.text, "before")}


def test_a_moment_that_a_point_has_no_more_is_forgotten(tmp_path: Path) -> None:
    record = played(tmp_path / "points.json")
    record.add([result(REPLACE, NOT_REACHED, "middle"), result(REPLACE)])
    record.add_scene(SCENE, Counter({Point(REPLACE.text): 1}), 40.0, "newer")
    assert record.settled() == {(REPLACE.text, "before")}
    assert not record.points(SCENE, "newer")[0].partly


def test_points_that_few_scenes_pass_come_first(tmp_path: Path) -> None:
    record = played(tmp_path / "points.json")
    record.add_scene(OTHER, Counter({OPEN: 1}), 40.0, CODE)
    assert record.points(SCENE, CODE) == [REPLACE, OPEN]


def test_a_campaign_afresh_forgets_what_is_stored(tmp_path: Path) -> None:
    played(tmp_path / "points.json").add([result(OPEN)])
    assert not Record(tmp_path / "points.json", afresh=True).settled()


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"scenes": {}, "points": {}, "ends": [{}]}'])
def test_a_file_that_is_no_record_is_refused_by_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "points.json").write_text(text)
    with pytest.raises(ValueError, match=r"points.json is no record .* --afresh"):
        Record(tmp_path / "points.json")


def test_the_published_record_can_be_gone_on_from() -> None:
    assert Record().settled()


def test_the_page_is_what_the_script_writes_from_the_published_record() -> None:
    assert PAGE.read_text() == page(json.loads(STORED.read_text()))


def test_the_page_counts_by_scene_and_part_and_quotes_what_is_different(tmp_path: Path) -> None:
    record = played(tmp_path / "points.json")
    record.add_scene(OTHER, Counter({REPLACE: 1}), 61.5, CODE)
    record.add([result(OPEN), result(REPLACE, ENDED), result(REPLACE, "worker-1 was harmed", "middle")])
    text = page(json.loads((tmp_path / "points.json").read_text()))
    assert "2026-11-23: 2 points, 2 of them ended at; 3 ends of the 5 that are possible" in text
    assert "Runs: 1, 0.0 hours together." in text
    assert "| a scene | 3 | 1 | 1 | 0 | 1 |" in text
    assert "| another scene | 0 | 0 | 0 | 0 | 0 |" in text
    assert "| agent | 3 | 1 | 1 | 0 | 1 |" in text
    assert "- middle `agent: replace it` (a scene): worker-1 was harmed" in text
