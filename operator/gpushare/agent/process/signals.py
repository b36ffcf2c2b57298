"""A signal to exactly the process that was seen, never to a later one of its PID."""

import os
import signal
from pathlib import Path

from gpushare.agent.process import processes
from gpushare.agent.process.processes import ProcessIdentity


def send(process: ProcessIdentity, number: signal.Signals, proc: Path = Path("/proc")) -> bool:
    """False: it is gone. OSError: the kernel refuses, as for lack of CAP_KILL."""
    try:
        pidfd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        # Read after the pidfd was opened: it is this process that the pidfd holds on to.
        if processes.read_start_time(process.pid, proc) != process.started:
            return False
        signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(pidfd)
    return True
