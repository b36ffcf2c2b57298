"""The first process of a container, which starts the container's work again whenever that ends.

The kubelet does so, too, but after a pause that grows to minutes, in which nobody can attach to a GPU.

Guarantees: the work runs in a child, which is forked before its modules are imported, so the parent stays small. A
signal to end is passed on, and then nothing is started any more. The child is started again at once, and at most
five times a second; after MOST_SOON that ended within SOON_SECONDS the parent ends as the last one did, so that the
kubelet sees it. A child never outlives its parent.
"""

import logging
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

LOG = logging.getLogger(__name__)
PAUSE_SECONDS = 0.2
"""Between two starts."""
SOON_SECONDS = 10.0
MOST_SOON = 10
_ENDING = (signal.SIGTERM, signal.SIGINT)
_SIGNALS = (*_ENDING, signal.SIGCHLD)
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Restarts:
    """`count`: how often the work was started again. `last_end`: how it ended last, such as `killed by signal 9`."""

    count: int = 0
    last_end: str = ""


NEVER = Restarts()


def keep_running(work: Callable[[Restarts], int]) -> int:
    """The exit code of the whole process: what `work` returned in the child that was asked to end, or that ended too
    often.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # they are waited for
    restarts, soon = NEVER, 0
    while True:
        began = time.monotonic()
        status, asked = _run(work, restarts)
        code = os.waitstatus_to_exitcode(status)
        soon = soon + 1 if time.monotonic() - began < SOON_SECONDS else 0
        if asked or soon > MOST_SOON:
            if not asked:
                LOG.error("it %s, %d times in a row within %g s: giving up", _end(code), soon, SOON_SECONDS)
            return code if code >= 0 else 128 - code
        restarts = Restarts(restarts.count + 1, _end(code))
        LOG.warning("it %s and is started again, for the %d. time", restarts.last_end, restarts.count)
        if _asked_within(began + PAUSE_SECONDS - time.monotonic()):
            return 0


def _run(work: Callable[[Restarts], int], restarts: Restarts) -> tuple[int, bool]:
    """The status of a child that has ended, and whether it was asked to."""
    parent = os.getpid()
    try:
        child = os.fork()
    except OSError as error:  # no process is left
        LOG.error("no process can be started: %s", error)
        return 1 << 8, _asked_within(PAUSE_SECONDS)
    if child == 0:
        os._exit(_worked(work, restarts, parent))
    asked = False
    while True:
        number = signal.sigwait(_SIGNALS)
        if number in _ENDING:
            asked = True
            with suppress(ProcessLookupError):
                os.kill(child, number)
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status, asked


def _worked(work: Callable[[Restarts], int], restarts: Restarts, parent: int) -> int:
    """In the child: what the work returned; 1 where it raised."""
    try:
        import ctypes  # a MiB, which the parent need not have

        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        return work(restarts) if os.getppid() == parent else 1
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else 1
    except BaseException:
        LOG.exception("it failed")
        return 1
    finally:
        logging.shutdown()


def _asked_within(seconds: float) -> bool:
    """Waits, and tells whether a signal to end came."""
    ends = time.monotonic() + seconds
    while (left := ends - time.monotonic()) > 0:
        if signal.sigtimedwait(_ENDING, left) is not None:
            return True
    return False


def _end(code: int) -> str:
    return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
