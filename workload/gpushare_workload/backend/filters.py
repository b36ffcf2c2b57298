"""What the GPU computes for each chunk of a pipeline, and the coefficients that it needs. Pure."""

from enum import StrEnum

import numpy as np

from gpushare_workload.backend.work import Floats

TAPS = 64
"""Coefficients of the filter `signal`: each result needs that many inputs."""


class ChunkFilter(StrEnum):
    """What is computed for a chunk of floats."""

    ADD = "add"
    """The sum of two inputs."""
    NORMALISE = "normalise"
    """One input, scaled to mean 0 and standard deviation 1; all zeros if all values are equal."""
    SIGNAL = "signal"
    """One input, convolved with `taps()`. Zeros stand before its first value."""


def taps() -> Floats:
    """The coefficients, (TAPS,): a decaying wave. The first one belongs to the newest value."""
    place = np.arange(TAPS, dtype=np.float64)
    return (np.exp(-place / 16) * np.cos(place / 4)).astype(np.float32)
