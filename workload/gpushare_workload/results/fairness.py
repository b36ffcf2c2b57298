"""Fairness between clients. Pure."""

from collections.abc import Sequence


def jain(rates: Sequence[float]) -> float:
    """Jain's fairness index: 1 if all get the same, 1/n if one gets everything (DEC-TR-301, 1984).

    1 if all rates are 0. Raises ValueError without rates, or for a negative one.
    """
    if not rates:
        raise ValueError("fairness is between clients, and there is none")
    if min(rates) < 0:
        raise ValueError(f"a rate of {min(rates):g}")
    largest = max(rates)
    if largest == 0:
        return 1.0
    scaled = [rate / largest for rate in rates]  # squares of tiny rates would vanish
    index = sum(scaled) ** 2 / (len(scaled) * sum(rate * rate for rate in scaled))
    return min(1.0, max(1 / len(scaled), index))
