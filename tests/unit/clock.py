"""A clock for what takes one as a function."""


class Clock:
    """Seconds that pass only when a test lets them. `reads`: how often it was read."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now
        self.reads = 0

    def __call__(self) -> float:
        self.reads += 1
        return self.now
