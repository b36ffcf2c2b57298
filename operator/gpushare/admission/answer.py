"""What a review comes to: admitted, perhaps with changes and warnings, or refused with everything that is wrong."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

_TOLD = 20
_SHOWN = 64


@dataclass(frozen=True, slots=True)
class Change:
    """One JSON patch operation. Always `add`: we never take away or replace what a tenant wrote."""

    path: str
    """JSON pointer."""
    value: Any
    field: str
    """The same place as a user would name it."""

    def operation(self) -> dict[str, Any]:
        return {"op": "add", "path": self.path, "value": self.value}


@dataclass(frozen=True, slots=True)
class Admitted:
    changes: tuple[Change, ...] = ()
    warnings: tuple[str, ...] = ()


class Reason(StrEnum):
    """What kinds of problems there are, for counting them: a sentence names what a tenant wrote, a kind does not."""

    SLOT = "Slot"
    CLAIM = "Claim"
    CAPACITY = "Capacity"
    INTERNAL_RESOURCE = "InternalResource"
    SHARE = "Share"
    ANNOTATION = "Annotation"
    ENVIRONMENT = "Environment"
    MOUNT = "Mount"
    VOLUME = "Volume"
    USER = "User"
    CHANGED_AFTERWARDS = "ChangedAfterwards"
    SHARE_SPEC = "ShareSpec"


@dataclass(frozen=True, slots=True)
class Denied:
    problems: tuple[str, ...]
    reasons: frozenset[Reason]

    def message(self) -> str:
        """All problems, bounded: a pod has at most as many as fit on a screen."""
        if len(self.problems) == 1:
            return self.problems[0]
        lines = [f"- {problem}" for problem in self.problems[:_TOLD]]
        if len(self.problems) > _TOLD:
            lines.append(f"- and {len(self.problems) - _TOLD} more")
        return "\n".join([f"{len(self.problems)} problems:", *lines])


Answer = Admitted | Denied


def quoted(value: object) -> str:
    """A refused value as it is shown: in quotes and not longer than a line."""
    text = str(value)
    return f'"{text}"' if len(text) <= _SHOWN else f'"{text[:_SHOWN]}…"'


def listed(mapping: Mapping[str, Any], key: str) -> list[Any]:
    """A list field that may be missing or null."""
    return list(mapping.get(key) or ())


def mapped(mapping: Mapping[str, Any], key: str) -> dict[str, Any]:
    """An object field that may be missing or null."""
    return dict(mapping.get(key) or {})
