"""The figures of several repeats as those of one, with their spread. Pure."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

DIGITS = 4


def summarised(repeats: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The figures of the last repeat, with the median over all repeats in the place of each float.

    With more than one repeat, `<name>_least` and `<name>_largest` follow each float. Raises ValueError without repeats.
    """
    if not repeats:
        raise ValueError("no repeats, no figures")
    summary: dict[str, Any] = {"repeats": len(repeats)}
    for name, last in repeats[-1].items():
        if not isinstance(last, float):
            summary[name] = last
            continue
        values = [one[name] for one in repeats]
        summary[name] = round(statistics.median(values), DIGITS)
        if len(repeats) > 1:
            summary |= {f"{name}_least": round(min(values), DIGITS), f"{name}_largest": round(max(values), DIGITS)}
    return summary
