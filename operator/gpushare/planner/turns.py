"""Turns between namespaces: of a list that is cut, no tenant has the whole. Pure."""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TypeVar

Item = TypeVar("Item")


def in_turns(items: Iterable[Item], owner: Callable[[Item], str]) -> list[Item]:
    """The first of each owner, then the second of each, and so on; of one turn in the order in which they come."""
    turns: Counter[str] = Counter()
    placed: list[tuple[int, Item]] = []
    for item in items:
        of = owner(item)
        placed.append((turns[of], item))
        turns[of] += 1
    return [item for _, item in sorted(placed, key=lambda pair: pair[0])]
