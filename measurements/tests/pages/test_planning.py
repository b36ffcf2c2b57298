"""measurements/pages/planning.md says what the stored week says."""

import json

from measurements.scale.week import page
from measurements.scale.week.trace import COMMIT, SHA256

FOUND = json.loads(page.FIGURES.read_text())


def test_the_pages_tables_are_what_the_script_writes_from_the_result() -> None:
    assert page.filled(page.PAGE.read_text(), FOUND) == page.PAGE.read_text()


def test_another_result_would_change_the_page() -> None:
    other = json.loads(json.dumps(FOUND))
    other["weeks"]["80"]["slots.packed"]["gpusInUse"][0] += 1
    assert page.filled(page.PAGE.read_text(), other) != page.PAGE.read_text()


def test_the_result_is_of_the_trace_that_the_code_names_and_so_is_the_page() -> None:
    assert (FOUND["trace"]["commit"], FOUND["trace"]["sha256"]) == (COMMIT, SHA256)
    assert all(text[:12] in page.PAGE.read_text() for text in (COMMIT, *SHA256.values()))
