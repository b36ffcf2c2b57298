"""Numbers and names in sentences, the same in every message. Pure."""

from collections.abc import Sequence


def count_of(number: int, noun: str) -> str:
    """A phrase such as `1 slot`, `3 slots` or `2 processes`."""
    return f"{number} {plural(number, noun)}"


def plural(number: int, noun: str) -> str:
    """The noun for 1, its regular plural for any other number."""
    if number == 1:
        return noun
    return f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}es" if noun.endswith("s") else f"{noun}s"


def are(number: int) -> str:
    """`is` for 1, `are` for any other number."""
    return "is" if number == 1 else "are"


def first_names(names: Sequence[str], most: int) -> str:
    """A list such as `ml/a, ml/b and 3 more`, in the order given."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


def named(noun: str, names: Sequence[str], most: int) -> str:
    """A phrase such as `pod ml/a`, or `pods ml/a, ml/b and 3 more`."""
    return f"{plural(len(names), noun)} {first_names(names, most)}"
