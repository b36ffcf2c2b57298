"""Tables in pages: between their marks, and nowhere else."""

import pytest

from tests.page_tables import filled, head_of

PAGE = """before
<!-- a: written by x -->
old
| a |
<!-- end of a -->
between
<!-- b: written by x -->
<!-- end of b -->
after
"""


def test_a_table_replaces_what_is_between_its_marks() -> None:
    page = filled(PAGE, {"a": "new", "b": "also"})
    assert page == PAGE.replace("old\n| a |", "new").replace("x -->\n<!-- end of b", "x -->\nalso\n<!-- end of b")
    assert filled(page, {"a": "new", "b": "also"}) == page


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nothing", "no place for the table a"),
        (PAGE.replace("<!-- end of a -->\n", ""), "no place for the table a"),
        (PAGE.replace("by x -->\nold", "by x --> old"), "no place for the table a"),
        (PAGE.replace("end of a", "end of").replace("end of b", "end of a"), "no place for the table a"),
        (PAGE + PAGE, "2 places for the table a"),
    ],
    ids=["no marks", "no end", "text on the mark's line", "another table in between", "two places"],
)
def test_a_page_without_one_place_for_a_table_is_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        filled(text, {"a": "new"})


def test_a_head_has_as_many_dashes_as_columns() -> None:
    assert list(head_of("a", "b")) == ["| a | b |", "| --- | --- |"]
