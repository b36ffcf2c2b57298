"""A process beside a comparison that ends its copies if the comparison itself is killed. Standard library alone.

Run as a program. On standard input it is told the process group of each copy, a line each. At the end of its input, in
whichever way that came, it ends those that still live: SIGTERM, then SIGKILL after the seconds of its only argument. A
comparison that has ended its copies itself kills the keeper. A group is named by its first process, and left alone
where that one's PID is another process' by now.
"""

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

POLL_SECONDS = 0.05


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # of the terminal: they are not meant for the copies
        signal.signal(number, signal.SIG_IGN)
    groups = {int(line): _start_time(int(line)) for line in sys.stdin}
    _signal(groups, signal.SIGTERM)
    end = time.monotonic() + float(sys.argv[1])
    while any(_lives(*group) for group in groups.items()) and time.monotonic() < end:
        time.sleep(POLL_SECONDS)
    _signal(groups, signal.SIGKILL)


def _signal(groups: dict[int, str], number: signal.Signals) -> None:
    for group, started in groups.items():
        if _lives(group, started):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(group, number)


def _lives(group: int, started: str) -> bool:
    if _start_time(group) not in ("", started):
        return False
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _start_time(pid: int) -> str:
    """The start time of a process in clock ticks since boot; empty where there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return ""
    return stat.rpartition(b")")[2].split()[19].decode()


if __name__ == "__main__":
    main()
