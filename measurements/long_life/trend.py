"""Does a series grow? A slope with its uncertainty, and what can be said of it. Pure.

Ordinary least squares with a level for each process (a new one begins anew), the number of clients and of shares as
further causes, and one slope for all. Neighbouring minutes are alike, so that there are fewer independent values than
minutes: the usual correction by the residuals' autocorrelation at lag one (n (1 - r) / (1 + r) values) is made.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

WARM_UP_MINUTES = 30
"""Minutes of each process that are left out: until then it fills what it keeps for good. Of two agents the memory rose
by 2 MiB in these, and by 0.3 in the half hour after them."""
FEWEST_MINUTES = 10
"""Minutes of a process after its warm-up; of fewer nothing is taken."""
TOLERATED = 0.1
"""A part of the level, per day. What grows by less is called flat: any release comes sooner than a doubling."""
CONFIDENCE = 0.95


class Verdict(StrEnum):
    FLAT = "flat"
    GROWS = "grows"
    FALLS = "falls"
    SHORT = "too short to tell"


@dataclass(frozen=True)
class Row:
    """One minute of one process. `hour`: since the long life began, without the pauses between its stretches."""

    hour: float
    value: float
    life: str
    clients: float
    shares: float


@dataclass(frozen=True)
class Trend:
    """`level`: the median. `slope`, `margin`: per hour; with CONFIDENCE the slope is within `slope` ± `margin`.

    `hours`: of processes together, after their warm-up.
    """

    level: float
    slope: float
    margin: float
    hours: float
    lives: int

    @property
    def verdict(self) -> Verdict:
        """FLAT needs both ends of the interval within what is tolerated; GROWS and FALLS that 0 is not in it."""
        tolerated = max(self.level * TOLERATED, _LEAST) / 24
        low, high = self.slope - self.margin, self.slope + self.margin
        if -tolerated <= low and high <= tolerated:
            return Verdict.FLAT
        if low > 0:
            return Verdict.GROWS
        return Verdict.FALLS if high < 0 else Verdict.SHORT


_LEAST = 1.0
"""Per day: a thread, a file, an event."""


def trend(rows: Sequence[Row]) -> Trend | None:
    """None: there are too few minutes. `rows`: in order of time."""
    kept = _warm(rows)
    lives = sorted({row.life for row in kept})
    if not lives:
        return None
    values = np.array([row.value for row in kept])
    design = _design(kept, lives)
    coefficients, _, rank, _ = np.linalg.lstsq(design, values, rcond=None)
    residuals = values - design @ coefficients
    effective = _effective(kept, residuals)
    hours = np.array([row.hour for row in kept])
    unexplained = _unexplained(hours, np.delete(design, len(lives), axis=1))
    left = effective - rank
    margin = float("inf")
    if left >= 1 and unexplained > 0:
        variance = float(residuals @ residuals) / left / (unexplained * effective / len(kept))
        margin = student(left) * variance**0.5
    return Trend(float(np.median(values)), float(coefficients[len(lives)]), margin, len(kept) / 60, len(lives))


def _warm(rows: Iterable[Row]) -> list[Row]:
    by_life: dict[str, list[Row]] = {}
    for row in rows:
        by_life.setdefault(row.life, []).append(row)
    warm = [life[WARM_UP_MINUTES:] for life in by_life.values()]
    return [row for life in warm if len(life) >= FEWEST_MINUTES for row in life]


def _design(rows: Sequence[Row], lives: Sequence[str]) -> NDArray[np.float64]:
    """Columns: a level for each life, the hour, and the load where it differs at all."""
    columns = [[float(row.life == life) for row in rows] for life in lives]
    columns.append([row.hour for row in rows])
    for load in ([row.clients for row in rows], [row.shares for row in rows]):
        if len(set(load)) > 1:
            columns.append(load)
    return np.array(columns).T


def _effective(rows: Sequence[Row], residuals: NDArray[np.float64]) -> float:
    """How many independent values there are."""
    pairs = [number for number in range(1, len(rows)) if rows[number].life == rows[number - 1].life]
    total = float(residuals @ residuals)
    if total <= 1e-12 * len(rows) or not pairs:
        return float(len(rows))
    alike = float(sum(residuals[number] * residuals[number - 1] for number in pairs)) / total
    alike = min(max(alike, 0.0), 0.99)
    return len(rows) * (1 - alike) / (1 + alike)


def _unexplained(hours: NDArray[np.float64], others: NDArray[np.float64]) -> float:
    """The square sum of what the other columns leave of the hours."""
    explained, _, _, _ = np.linalg.lstsq(others, hours, rcond=None)
    left = hours - others @ explained
    return float(left @ left)


def student(freedom: float) -> float:
    """Two-sided quantile of Student's t for CONFIDENCE, by Cornish and Fisher (Abramowitz and Stegun 26.7.5)."""
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    terms: Mapping[int, float] = {
        1: (z**3 + z) / 4,
        2: (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        3: (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    }
    return z + sum(term / freedom**power for power, term in terms.items())
