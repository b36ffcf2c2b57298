"""How long a process says that it kept its GPU busy: it is the name of a thread of its own (workload/busytime).

A tenant may name its threads as it likes, so nothing but figures for people may follow from it.

Guarantees: the threads of a process are searched a few times in its life, and few of them; once the one is found, a
file of some bytes is read.
"""

import re
from collections import Counter
from collections.abc import Collection
from itertools import islice
from pathlib import Path

from gpushare import procfs
from gpushare.agent.process.processes import Identity

MOST_THREADS = 1024
"""Of a process, that are looked at; the library's is among the first, since it is started in cuInit."""
SEARCHES = 5
"""For a process; it may be listed before the library has started its thread."""
_NAME = re.compile(r"gpubusy(?P<hundredths>[0-9a-f]{8})")


class BusyReader:
    """Reads /proc. Blocks."""

    def __init__(self, proc: Path = procfs.PROC) -> None:
        self._proc = proc
        self._threads: dict[Identity, Path] = {}
        self._searches: Counter[Identity] = Counter()

    def read(self, pid: int, started: int) -> float | None:
        """Seconds. None: the process does not say, or has ended."""
        process = (pid, started)
        if process not in self._threads and self._searches[process] < SEARCHES:
            self._searches[process] += 1
            found = self._found(pid)
            if found is not None:
                self._threads[process] = found
        thread = self._threads.get(process)
        return None if thread is None else _seconds(thread)

    def forget_others(self, alive: Collection[Identity]) -> None:
        self._threads = {process: thread for process, thread in self._threads.items() if process in alive}
        self._searches = Counter({process: count for process, count in self._searches.items() if process in alive})

    def _found(self, pid: int) -> Path | None:
        try:
            threads = (entry / "comm" for entry in islice((self._proc / str(pid) / "task").iterdir(), MOST_THREADS))
            return next((thread for thread in threads if _seconds(thread) is not None), None)
        except OSError:
            return None


def _seconds(thread: Path) -> float | None:
    """From the thread's name. None: it has another one, or has ended."""
    try:
        match = _NAME.fullmatch(procfs.read_text(thread).removesuffix("\n"))
    except OSError:
        return None
    return int(match["hundredths"], 16) / 100 if match else None
