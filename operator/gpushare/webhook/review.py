"""A review: the data that it is decided on, and its answer: admitted, or denied with all problems."""

import reprlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import Any

from gpushare.api.gpushare import GpuShare
from gpushare.messages.wording import count_of

MOST_PROBLEMS = 20
"""So many lines fit on a screen. Further problems are not looked for."""
LONGEST_VALUE = 64
LONGEST_NAME = 128
"""The characters of a field's name as a tenant chose it; no name that can be right is longer."""
LONGEST_SENTENCE = 1200
MOST_WORDS = 8


@dataclass(frozen=True, slots=True)
class AdmissionData:
    """What a pod or claim is decided on, gathered before the decision."""

    namespace: str
    """The namespace of the pod or claim."""
    namespace_labels: Mapping[str, str]
    shares: Mapping[str, GpuShare]
    """The existing shares by name, of those that the pod or claim asks for."""
    share_names: Collection[str]
    """All shares, to suggest one where a name is misspelt."""
    own_namespace: str
    """The namespace where gpushare itself runs."""
    claims: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The specs, by name in the pod's spec.resourceClaims, of the claims or templates that exist."""
    tolerated: tuple[str, ...] = ()
    """Keys of the taints that pods with a GPU, or a part of one, tolerate."""


@dataclass(frozen=True, slots=True)
class Change:
    """One JSON patch operation. Always `add`: what a tenant wrote is never removed or replaced. A grant that an earlier
    review wrote is: `add` replaces what is there.
    """

    path: str
    """JSON pointer."""
    value: Any
    field: str
    """The same place as a user names it, such as spec.containers[0].env."""

    def operation(self) -> dict[str, Any]:
        return {"op": "add", "path": self.path, "value": self.value}


@dataclass(frozen=True, slots=True)
class Admitted:
    changes: tuple[Change, ...] = ()
    warnings: tuple[str, ...] = ()


class Reason(StrEnum):
    """Kinds of problems, as metrics count them: a kind, unlike a sentence, holds nothing that a tenant wrote."""

    SLOT = "Slot"
    CLAIM = "Claim"
    CAPACITY = "Capacity"
    INTERNAL_RESOURCE = "InternalResource"
    SHARE = "Share"
    ANNOTATION = "Annotation"
    ENVIRONMENT = "Environment"
    MOUNT = "Mount"
    CHANGED_AFTERWARDS = "ChangedAfterwards"
    SHARE_SPEC = "ShareSpec"
    SIZE = "Size"


@dataclass(frozen=True, slots=True)
class Denied:
    problems: tuple[str, ...]
    reasons: frozenset[Reason]

    def message(self) -> str:
        """The problems as one text, MOST_PROBLEMS of them at most."""
        if len(self.problems) == 1:
            return self.problems[0]
        lines = [f"- {problem}" for problem in self.problems[:MOST_PROBLEMS]]
        if len(self.problems) <= MOST_PROBLEMS:
            return "\n".join([f"{count_of(len(self.problems), 'problem')}:", *lines])
        return "\n".join([f"more than {MOST_PROBLEMS} problems:", *lines, "- and more"])


Answer = Admitted | Denied


class Problems:
    """What is wrong with an object: sentences, each once, and their reasons.

    Guarantees: one more than a message holds at most; a rule that yields sentences is not asked for any after that.
    """

    def __init__(self) -> None:
        self._found: dict[str, Reason] = {}

    def __bool__(self) -> bool:
        return bool(self._found)

    @property
    def full(self) -> bool:
        return len(self._found) > MOST_PROBLEMS

    def add(self, reason: Reason, sentences: Iterable[str]) -> None:
        if self.full:
            return
        for sentence in sentences:
            self._found.setdefault(shown(sentence, LONGEST_SENTENCE), reason)
            if self.full:
                return

    def denied(self) -> Denied:
        return Denied(tuple(self._found), frozenset(self._found.values()))


def shown(value: object, longest: int = LONGEST_NAME) -> str:
    """What a tenant wrote, for a message: cut where it is longer than `longest`.

    What is not printable is escaped, so that no terminal, and no reader of a log, is told to do something.
    """
    text = value if isinstance(value, str) else _text(value)
    cut = text[:longest] + ("…" if len(text) > longest else "")
    if cut.isprintable():
        return cut
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in cut
    )


def quoted(value: object) -> str:
    """A refused value for a message: in quotes, and cut where it is longer than a line."""
    return f'"{shown(value, LONGEST_VALUE)}"'


def some(words: Iterable[str]) -> str:
    """A list of them for a message; of a long one, the beginning."""
    first = list(islice(words, MOST_WORDS + 1))
    return ", ".join(first[:MOST_WORDS]) + (", …" if len(first) > MOST_WORDS else "")


def _text(value: object) -> str:
    """Maps and lists, which may be of any size, are only begun."""
    return reprlib.repr(value) if isinstance(value, (dict, list)) else str(value)


def listed(mapping: Mapping[str, Any], key: str) -> list[Any]:
    """A list field that may be missing or null. Not a copy: objects of a review are never changed."""
    return mapping.get(key) or []


def mapped(mapping: Mapping[str, Any], key: str) -> dict[str, Any]:
    """An object field that may be missing or null. Not a copy."""
    return mapping.get(key) or {}
