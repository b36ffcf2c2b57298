"""How long containers waited for a place, as a histogram. Pure."""

from bisect import bisect_left

from gpushare.mps.wire import WAIT_BUCKETS, WaitBucket, WaitTimes


class Waits:
    """Those that ended with a place."""

    def __init__(self) -> None:
        self._counts = [0] * (len(WAIT_BUCKETS) + 1)
        """Of waits that no shorter bucket has; the last one is of those that no bucket has."""
        self._seconds = 0.0

    def add(self, seconds: float) -> None:
        self._counts[bisect_left(WAIT_BUCKETS, seconds)] += 1
        self._seconds += max(0.0, seconds)

    def restore(self, times: WaitTimes) -> None:
        """Those of an earlier broker; none, where it counted by other buckets."""
        if [bucket.seconds for bucket in times.buckets] != list(WAIT_BUCKETS):
            return
        shorter = 0
        for number, bucket in enumerate(times.buckets):
            self._counts[number] += max(0, bucket.count - shorter)
            shorter = max(shorter, bucket.count)
        self._counts[-1] += max(0, times.count - shorter)
        self._seconds += times.seconds

    @property
    def times(self) -> WaitTimes:
        buckets, count = [], 0
        for seconds, added in zip(WAIT_BUCKETS, self._counts, strict=False):
            count += added
            buckets.append(WaitBucket(seconds=seconds, count=count))
        return WaitTimes(buckets=buckets, count=count + self._counts[-1], seconds=self._seconds)
