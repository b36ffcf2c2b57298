"""What containers have mounted from us is kept open here, so that nobody gets a write lease on it (fcntl(2)).

Root of a container, without a user namespace of its own, is the user of these files, and with a lease on one makes
everybody wait who opens it, such as another container that runs or loads it: for up to fs.lease-break-time, again and
again. The kernel gives no such lease on a file that somebody has open.
"""

import os
from contextlib import suppress
from pathlib import Path

from gpushare.process.threads import start_thread


class Readers:
    """To open a file takes as long as a lease of before on it, so that is done in a thread."""

    def __init__(self) -> None:
        self._opened: dict[Path, int] = {}

    def open_all(self, directory: Path) -> None:
        """The files of all versions. OSError: not of all."""
        for path in directory.glob("*/*"):
            if path not in self._opened:
                start_thread(self._open, path, name="reader")

    def close(self, version: Path) -> None:
        for path in [path for path in self._opened if path.parent == version]:
            os.close(self._opened.pop(path))

    def _open(self, path: Path) -> None:
        with suppress(OSError):  # it has gone
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            before = self._opened.get(path)
            self._opened[path] = descriptor
            if before is not None:
                os.close(before)
