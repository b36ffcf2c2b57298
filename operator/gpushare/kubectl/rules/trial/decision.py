"""The one rule by which sharing a GPU pays. Pure.

It asks four questions: is there more work done, by all together? Does nobody wait much longer? Does nobody get much
less than the others? Does MPS not lose to time slices? What was not measured is not asked. docs/enabling.md has the
rule for people; `compare`, `trial` and the published tables pass through it.
"""

from dataclasses import dataclass
from enum import StrEnum

from gpushare.kubectl.rules.trial.rows import TrialRow
from gpushare.kubectl.rules.trial.spread import Spread

WORTH = 1.2
"""The least work of all together, in GPUs that each run one copy alone."""
LONGEST_P99 = 2.0
"""The largest p99 of the copy that waits longest, as a multiple of the p99 of one alone."""
LEAST_OF_MEAN = 0.5
"""The least speed of the slowest copy, as a part of the mean speed of all."""
RULE = (
    f"all together do at least {WORTH:g} times the work of one, p99 is at most {LONGEST_P99:g} times that alone, and "
    f"the slowest has at least {LEAST_OF_MEAN:.0%} of the mean speed"
)


class Holds(StrEnum):
    """Whether a part of the rule holds: in every sample, in none, or in some."""

    YES = "yes"
    NO = "no"
    UNCLEAR = "unclear"


@dataclass(frozen=True, slots=True)
class RuleParts:
    """Each part of the rule by itself."""

    work: Holds
    latency: Holds
    even: Holds
    mps: Holds

    @property
    def holds(self) -> Holds:
        return _all_of(self.work, self.latency, self.even, self.mps)

    @property
    def gains(self) -> Holds:
        """Whether more gets done under MPS, whoever pays for it."""
        return _all_of(self.work, self.mps)


def judge(row: TrialRow) -> RuleParts | None:
    """None: there is nothing to compare the case with."""
    if row.gain is None:
        return None
    return RuleParts(
        work=_at_least(row.gain, WORTH),
        latency=Holds.YES if row.p99_times is None else _at_most(row.p99_times, LONGEST_P99),
        even=Holds.YES if row.of_mean is None else _at_least(row.of_mean, LEAST_OF_MEAN),
        mps=_not_below_slices(row.of_slices),
    )


def _all_of(*parts: Holds) -> Holds:
    if Holds.NO in parts:
        return Holds.NO
    return Holds.UNCLEAR if Holds.UNCLEAR in parts else Holds.YES


def _at_least(spread: Spread, bound: float) -> Holds:
    if spread.least >= bound:
        return Holds.YES
    return Holds.NO if spread.largest < bound else Holds.UNCLEAR


def _at_most(spread: Spread, bound: float) -> Holds:
    if spread.largest <= bound:
        return Holds.YES
    return Holds.NO if spread.least > bound else Holds.UNCLEAR


def _not_below_slices(ratio: Spread | None) -> Holds:
    """MPS that does as much as time slices is no loss; where it did less in most windows, nobody knows."""
    if ratio is None or ratio.median >= 1:
        return Holds.YES
    return Holds.NO if ratio.largest < 1 else Holds.UNCLEAR
