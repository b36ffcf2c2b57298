"""Latencies in bounded memory: counters in buckets whose width grows with the value, as in HdrHistogram.

Guarantees: a bucket is at most 1/128 of its value wide, and a percentile is the middle of its bucket, so it is within
0.4 % of the sample that it stands for. Least, largest and sum are exact. There are at most 5,376 counters. Recording is
integer arithmetic alone, because it happens between two launches.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

SUB_BITS = 7
SUB_BUCKETS = 1 << SUB_BITS
LARGEST_BITS = 48
LARGEST = (1 << LARGEST_BITS) - 1
"""Nanoseconds, about 78 hours. A longer duration counts as this."""
COUNTERS = (LARGEST_BITS - SUB_BITS + 1) * SUB_BUCKETS
RELATIVE_ERROR = 1 / (2 * SUB_BUCKETS)


class Histogram:
    """Counts durations in whole nanoseconds."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self.count = 0
        self.total = 0
        self.least = LARGEST
        self.largest = 0

    @classmethod
    def of(cls, nanoseconds: Iterable[int]) -> "Histogram":
        histogram = cls()
        for value in nanoseconds:
            histogram.record(value)
        return histogram

    @classmethod
    def merged(cls, parts: Iterable["Histogram"]) -> "Histogram":
        """The histogram of all samples of `parts`."""
        whole = cls()
        for part in parts:
            for bucket, count in part._counts.items():
                whole._counts[bucket] = whole._counts.get(bucket, 0) + count
            whole.count += part.count
            whole.total += part.total
            whole.least = min(whole.least, part.least)
            whole.largest = max(whole.largest, part.largest)
        return whole

    def record(self, nanoseconds: int) -> None:
        """Raises ValueError for a negative duration."""
        if nanoseconds < 0:
            raise ValueError(f"a duration of {nanoseconds} ns")
        value = min(nanoseconds, LARGEST)
        bucket = bucket_of(value)
        self._counts[bucket] = self._counts.get(bucket, 0) + 1
        self.count += 1
        self.total += value
        self.least = min(self.least, value)
        self.largest = max(self.largest, value)

    def percentile(self, percent: float) -> float:
        """The nanoseconds that `percent` of the samples do not exceed (nearest rank, NumPy's `inverted_cdf`).

        Raises ValueError without samples, or for a percentage outside of 0..100.
        """
        if not self.count:
            raise ValueError("no samples, no percentile")
        if not 0 <= percent <= 100:
            raise ValueError(f"a percentile is within 0 and 100, not {percent:g}")
        # The tolerance is for quotients such as 0.07 * 100, which is above 7.
        rank = max(1, math.ceil(percent / 100 * self.count - 1e-9))
        seen = 0
        for bucket, count in sorted(self._counts.items()):
            seen += count
            if seen >= rank:
                return self._within(bucket)
        return float(self.largest)

    def mean(self) -> float:
        """Exact, in nanoseconds. Raises ValueError without samples."""
        if not self.count:
            raise ValueError("no samples, no mean")
        return self.total / self.count

    def distribution(self) -> list[tuple[float, float]]:
        """The steps of the CDF: (nanoseconds, fraction of the samples up to there) of each bucket with samples."""
        steps, seen = [], 0
        for bucket, count in sorted(self._counts.items()):
            seen += count
            steps.append((self._within(bucket), seen / self.count))
        return steps

    def as_json(self) -> dict[str, Any]:
        counts = {str(bucket): count for bucket, count in sorted(self._counts.items())}
        return {"total_ns": self.total, "least_ns": self.least, "largest_ns": self.largest, "counts": counts}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Histogram":
        """The inverse of `as_json`. Raises KeyError or ValueError for other values."""
        histogram = cls()
        histogram._counts = {int(bucket): int(count) for bucket, count in value["counts"].items()}
        histogram.count = sum(histogram._counts.values())
        histogram.total = int(value["total_ns"])
        histogram.least, histogram.largest = int(value["least_ns"]), int(value["largest_ns"])
        return histogram

    def _within(self, bucket: int) -> float:
        """The middle of a bucket, limited by the exact extremes."""
        return min(max(bucket_middle(bucket), float(self.least)), float(self.largest))


def bucket_of(value: int) -> int:
    """The bucket of a duration: one for each value below 256, 128 for each power of two above."""
    shift = max(0, value.bit_length() - SUB_BITS - 1)
    return shift * SUB_BUCKETS + (value >> shift)


def bucket_middle(bucket: int) -> float:
    """The middle of a bucket in nanoseconds."""
    shift = max(0, bucket // SUB_BUCKETS - 1)
    first = (bucket - shift * SUB_BUCKETS) << shift
    return first + ((1 << shift) - 1) / 2
