"""What a user asks for that does not exist, told with what he may have meant."""

import difflib
from collections.abc import Collection, Iterable

from gpushare.messages.wording import first_names


class WrongInputError(Exception):
    """The text names the value, and what to do."""


def unknown(kind: str, name: str, known: Collection[str] | None) -> WrongInputError:
    """`known`: those that there are; None where they cannot be listed."""
    return WrongInputError(f'{kind} "{name}" not found{_suggestion(name, known)}')


def require(kind: str, name: str, known: Iterable[str]) -> None:
    """Raises WrongInputError where `name` is none of `known`."""
    names = list(known)
    if name not in names:
        raise unknown(kind, name, names)


def _suggestion(name: str, known: Collection[str] | None) -> str:
    if known is None:
        return ""
    if not known:
        return "; there is none"
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if close:
        return f'; did you mean "{close[0]}"?'
    return f"; there are {first_names(sorted(known), 5)}"
