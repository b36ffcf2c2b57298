"""A review: the data that it is decided on, and its answer: admitted, or denied with all problems."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from gpushare.api.gpushare import GpuShare

MOST_PROBLEMS = 20
LONGEST_VALUE = 64


@dataclass(frozen=True, slots=True)
class AdmissionData:
    """What a pod or claim is decided on, gathered before the decision."""

    namespace: str
    """The namespace of the pod or claim."""
    namespace_labels: Mapping[str, str]
    shares: Mapping[str, GpuShare]
    """By name: the existing ones of those that the pod or claim asks for."""
    share_names: Collection[str]
    """All shares, to suggest one where a name is misspelt."""
    own_namespace: str
    """Where gpushare itself runs."""
    claims: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By name in the pod's spec.resourceClaims: the specs of the claims or templates that exist."""


@dataclass(frozen=True, slots=True)
class Change:
    """One JSON patch operation. Always `add`: what a tenant wrote is never removed or replaced."""

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
    VOLUME = "Volume"
    CHANGED_AFTERWARDS = "ChangedAfterwards"
    SHARE_SPEC = "ShareSpec"


@dataclass(frozen=True, slots=True)
class Denied:
    problems: tuple[str, ...]
    reasons: frozenset[Reason]

    def message(self) -> str:
        """All problems as one text, of at most as many lines as fit on a screen."""
        if len(self.problems) == 1:
            return self.problems[0]
        lines = [f"- {problem}" for problem in self.problems[:MOST_PROBLEMS]]
        if len(self.problems) > MOST_PROBLEMS:
            lines.append(f"- and {len(self.problems) - MOST_PROBLEMS} more")
        return "\n".join([f"{len(self.problems)} problems:", *lines])


Answer = Admitted | Denied


def quoted(value: object) -> str:
    """A refused value for a message: in quotes, and cut where it is longer than a line."""
    text = str(value)
    return f'"{text}"' if len(text) <= LONGEST_VALUE else f'"{text[:LONGEST_VALUE]}…"'


def listed(mapping: Mapping[str, Any], key: str) -> list[Any]:
    """A list field that may be missing or null."""
    return list(mapping.get(key) or ())


def mapped(mapping: Mapping[str, Any], key: str) -> dict[str, Any]:
    """An object field that may be missing or null."""
    return dict(mapping.get(key) or {})
