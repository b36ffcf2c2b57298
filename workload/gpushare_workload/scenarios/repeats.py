"""The figures of several repeats as those of one, with their spread. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from gpushare.kubectl.rules.trial.spread import Spread

DIGITS = 4


def ratio(name: str, ratios: Sequence[float], digits: int, timed: bool) -> dict[str, float | None]:
    """The fields of a ratio of times or rates. None where there is none, or where no time is a GPU's."""
    return {**Spread.of(ratios).rounded(name, digits)} if timed and ratios else {name: None}


def summarised(repeats: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The figures of the last repeat, with the median over all repeats in the place of each float.

    With more than one repeat, `<name>_least` and `<name>_largest` follow each float. Repeats in which a figure is None
    (it could not be had) do not count for it. Raises ValueError without repeats.
    """
    if not repeats:
        raise ValueError("no repeats, no figures")
    summary: dict[str, Any] = {"repeats": len(repeats)}
    for name, last in repeats[-1].items():
        floats = [figures[name] for figures in repeats if isinstance(figures[name], float)]
        if not floats:
            summary[name] = last
            continue
        spread = Spread.of(floats).rounded(name, DIGITS)
        summary |= spread if len(repeats) > 1 else {name: spread[name]}
    return summary
