"""The daemon's log: everything that control daemon and server print, bounded, and its last line that tells something.

In the foreground both print to stderr and write no file (measured), so their output is appended to log/control.log.
Bounded by copy and truncate, which works because every writer appends (O_APPEND); lines written between the copy and
the truncation are lost, nothing else.
"""

import re
import shutil
from pathlib import Path
from typing import BinaryIO

MAX_BYTES = 4 * 1024 * 1024
"""Of each log; as much again is kept of what came before. 4 MiB hold some 2,000 clients."""

_TAIL_BYTES = 64 * 1024
_NOISE = re.compile(
    r"Accepting connection|NEW UI|Cmd:|UI closed|User did not send valid credentials"
    r"|\] \[\d+\] [\dA-Fa-f:.]+, "  # the device above its clients
    r"|\] (Server \d+ not found|[A-Z]+|[\d.]+[MG]?)$"  # answers to our own questions
)
_TROUBLE = re.compile(r"Failed|An instance of this daemon|Only root user|rror:|fatal GPU")


class DaemonLog:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory / "control.log"
        self._mark = 0

    def open(self) -> BinaryIO:
        """For a daemon to append to; what was there before no longer counts for `telling_line`."""
        self._directory.mkdir(mode=0o700, exist_ok=True)
        self.mark()
        return self._path.open("ab")

    def mark(self, size: int | None = None) -> None:
        """From here on, or from when the log had that `size`, `telling_line` looks at what is written later."""
        self._mark = self.size() if size is None else size

    def rotate(self) -> None:
        """Keep every log in the directory below its bound. Errors: OSError."""
        for path in self._directory.glob("*.log"):
            if path.stat().st_size <= MAX_BYTES:
                continue
            partial = path.with_suffix(".log.new")
            shutil.copyfile(path, partial)
            partial.replace(path.with_suffix(".log.1"))
            with path.open("r+b") as log:
                log.truncate(0)
            self._mark = 0

    def telling_line(self) -> str:
        """The last line since the mark that names a trouble, else the last that is no noise, else nothing."""
        lines = [line for line in self._tail() if line and not _NOISE.search(line)]
        troubles = [line for line in lines if _TROUBLE.search(line)]
        return (troubles or lines or [""])[-1]

    def size(self) -> int:
        try:
            return self._path.stat().st_size
        except FileNotFoundError:
            return 0

    def _tail(self) -> list[str]:
        size = self.size()
        try:
            with self._path.open("rb") as log:
                log.seek(max(0, min(self._mark, size), size - _TAIL_BYTES))
                return log.read(_TAIL_BYTES).decode(errors="replace").splitlines()
        except FileNotFoundError:
            return []
