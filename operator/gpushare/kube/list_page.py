"""A list of the API server as JSON, read item by item: only one of its objects is there as a whole at a time. Pure.

As a whole a page takes up to some 20 times its size, in pieces that the process keeps ever after.
"""

import json
import re
from collections.abc import Callable
from typing import Any

from gpushare.kube.resources import Object

_BLANKS = re.compile(r"[ \t\n\r]*")
_decode = json.JSONDecoder().raw_decode


def read_page(text: str, take: Callable[[Object], None]) -> Object:
    """Calls `take` with each of `items`, in their order; returns the rest of the list. ValueError: it is no JSON, or no
    object; `take` may have been called by then.
    """
    found: Object = {}
    position = _after(text, 0, "{")
    if _next(text, position) != "}":
        while True:
            name, position = _decode(text, _skip(text, position))
            if not isinstance(name, str):
                raise ValueError("the name of a field is no string")
            position = _after(text, position, ":")
            if name == "items" and _next(text, position) == "[":
                position = _read_items(text, position, take)
            else:
                found[name], position = _decode(text, _skip(text, position))
            if _next(text, position) == "}":
                break
            position = _after(text, position, ",")
    if _skip(text, _after(text, position, "}")) != len(text):
        raise ValueError("something follows the list")
    return found


def _read_items(text: str, position: int, take: Callable[[Any], None]) -> int:
    """The position after the array."""
    position = _after(text, position, "[")
    if _next(text, position) == "]":
        return _after(text, position, "]")
    while True:
        item, position = _decode(text, _skip(text, position))
        if not isinstance(item, dict):
            raise ValueError("an item is no object")
        take(item)
        del item  # before the next one is made
        if _next(text, position) == "]":
            return _after(text, position, "]")
        position = _after(text, position, ",")


def _skip(text: str, position: int) -> int:
    blanks = _BLANKS.match(text, position)
    assert blanks is not None  # noqa: S101 - for the type checker: no blank is a match, too
    return blanks.end()


def _next(text: str, position: int) -> str:
    """The next character that is no blank; empty at the end."""
    start = _skip(text, position)
    return text[start : start + 1]


def _after(text: str, position: int, character: str) -> int:
    """The position behind `character`. ValueError: another one is next."""
    if _next(text, position) != character:
        raise ValueError(f"{character} is missing at position {position}")
    return _skip(text, position) + 1
