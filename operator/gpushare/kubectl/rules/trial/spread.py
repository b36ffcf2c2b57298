"""A figure over repeats or windows, with its extremes. Pure."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure over repeats. For a handful of repeats, the extremes say more than a standard deviation."""

    median: float
    least: float
    largest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Raises ValueError without values."""
        if not values:
            raise ValueError("no values, no spread")
        return cls(statistics.median(values), min(values), max(values))

    @classmethod
    def of_any(cls, values: Sequence[float]) -> "Spread | None":
        """The spread of the values; None without values."""
        return cls.of(values) if values else None

    @classmethod
    def of_fields(cls, line: Mapping[str, Any], name: str) -> "Spread":
        """The spread in the fields that `rounded` writes. KeyError: one is missing."""
        return cls(float(line[name]), float(line[f"{name}_least"]), float(line[f"{name}_largest"]))

    def text(self, form: str = ",.2f") -> str:
        """Text such as `3.52 (3.48–3.55)`; without the extremes where they read the same in this form."""
        median, least, largest = (format(value, form) for value in (self.median, self.least, self.largest))
        return median if least == largest else f"{median} ({least}–{largest})"

    def as_json(self) -> dict[str, float]:
        return {"median": self.median, "least": self.least, "largest": self.largest}

    def rounded(self, name: str, digits: int) -> dict[str, float]:
        """The fields `<name>`, `<name>_least` and `<name>_largest`."""
        return {
            name: round(self.median, digits),
            f"{name}_least": round(self.least, digits),
            f"{name}_largest": round(self.largest, digits),
        }
