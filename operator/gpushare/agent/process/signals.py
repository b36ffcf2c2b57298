"""A signal to exactly the process that was read, never to a later one of its PID."""

import os
import signal
from pathlib import Path

from gpushare.agent.process.processes import ProcessIdentity, is_alive
from gpushare.procfs import PROC


def send(process: ProcessIdentity, number: signal.Signals, proc: Path = PROC) -> bool:
    """False: the process has ended. OSError: the kernel refuses, such as for lack of CAP_KILL."""
    try:
        pidfd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        # After the pidfd was opened: if the start time is still the same, the pidfd holds this very process.
        if not is_alive(process, proc):
            return False
        signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(pidfd)
    return True
