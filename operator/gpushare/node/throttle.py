"""When a changed status may be written: at once after quiet, seldom under constant change. Pure, with the clock given.

Two speeds. What others act on (a daemon becomes ready, a GPU is drained) is written at once; the rest waits until 10 s
after the last write. Both spend from the same allowance of one write per 10 s that saves up a few, so something that
flaps all day is still written every 10 s on average.
"""

from dataclasses import dataclass

INTERVAL = 10.0
SAVED = 6.0


@dataclass(slots=True)
class Throttle:
    allowance: float = SAVED
    counted_at: float = 0.0
    last_write: float = -INTERVAL

    def wait(self, now: float, *, urgent: bool) -> float:
        """Seconds until a write is due; 0 means now."""
        earned = self._allowance(now)
        for_allowance = max(0.0, (1.0 - earned) * INTERVAL)
        return for_allowance if urgent else max(for_allowance, self.last_write + INTERVAL - now)

    def wrote(self, now: float) -> None:
        self.allowance = self._allowance(now) - 1.0
        self.counted_at = self.last_write = now

    def _allowance(self, now: float) -> float:
        return min(SAVED, self.allowance + (now - self.counted_at) / INTERVAL)
