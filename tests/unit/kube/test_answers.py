"""A list is read item by item, as json.loads reads it as a whole."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.kube.answers import read_page

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(), VALUES, max_size=4)
LISTS = st.tuples(OBJECTS, st.lists(OBJECTS, max_size=4), OBJECTS).map(
    lambda parts: {**parts[0], "items": parts[1], **{key: value for key, value in parts[2].items() if key != "items"}}
)


def read(text: str) -> tuple[Any, list[Any]]:
    items: list[Any] = []
    return read_page(text.encode(), items.append), items


@given(LISTS, st.sampled_from((None, 1, "\t")), st.booleans())
def test_items_and_the_rest_are_those_of_the_whole_wherever_items_stand(
    whole: dict[str, Any], indent: int | str | None, ascii_only: bool
) -> None:
    text = "\n" + json.dumps(whole, indent=indent, ensure_ascii=ascii_only) + "\r\n"
    assert read(text) == ({key: value for key, value in whole.items() if key != "items"}, whole["items"])


def test_a_list_without_items_or_with_null_for_them_has_none() -> None:
    assert read('{"metadata": {}}') == ({"metadata": {}}, [])
    assert read('{"items": null}') == ({"items": None}, [])
    assert read("{}") == ({}, [])


@given(LISTS, st.data())
def test_what_is_cut_off_is_no_list(whole: dict[str, Any], data: st.DataObject) -> None:
    text = json.dumps(whole)
    cut = data.draw(st.integers(0, len(text) - 1))
    with pytest.raises(ValueError):  # noqa: PT011 - whatever the decoder says
        read(text[:cut])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        '"items"',
        "{1: 2}",
        '{"items": [1]}',
        '{"items": [{}] "metadata": {}}',
        '{"items": [{} {}]}',
        '{"items": [{},]}',
        '{"items": [{}],}',
        '{"items": [{}]} more',
        '{"items" [{}]}',
        "<html>not an API server</html>",
    ],
)
def test_what_is_no_list_of_objects_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - whatever the decoder says
        read(text)
