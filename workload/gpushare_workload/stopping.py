"""SIGTERM and SIGINT end a scenario between two kernels: dying in mid-kernel takes the neighbours along."""

import signal
import threading


class Stop:
    """Set once the process was asked to end. Check it between kernels; wait on it instead of sleeping."""

    def __init__(self) -> None:
        self._asked = threading.Event()

    def install(self) -> "Stop":
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._asked.set())
        return self

    def asked(self) -> bool:
        return self._asked.is_set()

    def wait(self, seconds: float) -> bool:
        return self._asked.wait(seconds)
