"""Signals by their names, and a signal to exactly the process that was read, never to a later one of its PID."""

import os
import re
import signal
from pathlib import Path

from gpushare.agent.process.processes import ProcessIdentity, is_alive
from gpushare.process.procfs import PROC

_REAL_TIME = re.compile(r"SIGRT(?P<end>MIN|MAX)(?P<offset>[+-][0-9]{1,2})?")


def number_of(name: str) -> int | None:
    """The number of a name as Kubernetes writes it, such as SIGTERM or SIGRTMIN+3; None: it is none."""
    real_time = _REAL_TIME.fullmatch(name)
    if real_time is None:
        return int(signal.Signals[name]) if name in signal.Signals.__members__ else None
    number = (signal.SIGRTMIN if real_time["end"] == "MIN" else signal.SIGRTMAX) + int(real_time["offset"] or 0)
    return number if signal.SIGRTMIN <= number <= signal.SIGRTMAX else None


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
