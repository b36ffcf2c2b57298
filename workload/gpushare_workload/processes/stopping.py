"""SIGTERM and SIGINT end a scenario between two kernels: a client that dies in mid-kernel ends its neighbours."""

import os
import select
import signal
import weakref


class StoppedError(Exception):
    """The program was asked to end before its work was done."""


class Stop:
    """A flag that is set when the process is asked to end. Check it between kernels; wait on it instead of sleeping.

    It is a file descriptor, not a threading.Event, for two reasons: a signal handler must not take a lock that the
    interrupted code may hold, and a descriptor can be waited for together with pipes.
    """

    def __init__(self) -> None:
        self._asked = False
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        # Not while the interpreter ends: another thread may still ask.
        weakref.finalize(self, os.close, self._event).atexit = False

    def install(self) -> "Stop":
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.ask())
        return self

    def ask(self) -> None:
        self._asked = True
        os.eventfd_write(self._event, 1)

    def asked(self) -> bool:
        return self._asked

    def check(self) -> None:
        """Raises StoppedError when the process was asked to end."""
        if self._asked:
            raise StoppedError("asked to end before the work was done")

    def wait(self, seconds: float) -> bool:
        """Sleeps for that long, or until the process is asked to end. True if it was asked."""
        return bool(select.select([self._event], [], [], max(0.0, seconds))[0])

    def fileno(self) -> int:
        """A descriptor that stays readable once the process was asked to end."""
        return self._event
