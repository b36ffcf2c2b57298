"""Open-loop load: when requests arrive, and how long each took from then on. Pure."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

PERCENTILES = (50, 90, 99)


def poisson(rate: float, seconds: float, seed: int) -> NDArray[np.float64]:
    """Arrival times within [0, seconds) of a Poisson process: the gaps are exponential with mean 1/rate."""
    generator = np.random.default_rng(seed)
    expected = rate * seconds
    times = np.empty(0)
    last = 0.0
    while last < seconds:
        gaps = generator.exponential(1 / rate, max(16, math.ceil(expected + 4 * math.sqrt(expected))))
        times = np.concatenate([times, last + np.cumsum(gaps)])
        last = float(times[-1])
    kept: NDArray[np.float64] = times[times < seconds]
    return kept


def percentiles(seconds: Sequence[float]) -> dict[str, float | None]:
    """Latencies in ms: the smallest that so many percent of them do not exceed (nearest rank), and the largest."""
    if not seconds:
        return {**{f"p{percent}_ms": None for percent in PERCENTILES}, "max_ms": None}
    ranks = np.percentile(seconds, PERCENTILES, method="inverted_cdf")
    named = {f"p{percent}_ms": float(value) for percent, value in zip(PERCENTILES, ranks, strict=True)}
    return {name: round(value * 1000, 4) for name, value in (named | {"max_ms": max(seconds)}).items()}
