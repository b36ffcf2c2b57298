"""The total time of several stretches of work."""

import time


class Stopwatch:
    """Use `with stopwatch: …` any number of times; `seconds` is the sum."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._began = 0.0

    def __enter__(self) -> "Stopwatch":
        self._began = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self._began
