"""When a changed status may be written: at once after quiet, seldom under constant change. Pure, with the clock given.

Two speeds. What others act on (a daemon becomes ready, a GPU is drained) is written at once; the rest waits until 10 s
after the last write. Both spend from the same allowance of one write per 2 s that saves up a few: shares that are made
and deleted in quick succession are not held up, and something that flaps all day costs the API server little.
"""

from dataclasses import dataclass

INTERVAL = 10.0
"""Seconds between two writes that nobody waits for."""
EARNED_EVERY = 2.0
SAVED = 10.0


@dataclass(slots=True)
class Throttle:
    allowance: float = SAVED
    counted_at: float = 0.0
    last_write: float = -INTERVAL

    def wait(self, now: float, *, urgent: bool) -> float:
        """Seconds until a write is due; 0 means now."""
        earned = self._allowance(now)
        for_allowance = max(0.0, (1.0 - earned) * EARNED_EVERY)
        return for_allowance if urgent else max(for_allowance, self.last_write + INTERVAL - now)

    def wrote(self, now: float) -> None:
        self.allowance = self._allowance(now) - 1.0
        self.counted_at = self.last_write = now

    def _allowance(self, now: float) -> float:
        return min(SAVED, self.allowance + (now - self.counted_at) / EARNED_EVERY)
