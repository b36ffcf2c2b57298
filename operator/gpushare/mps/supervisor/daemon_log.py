"""The daemon's log: the output of control daemon and server, bounded, and its last relevant line.

In the foreground both print to stderr and write no file (measured), so their output is appended to log/control.log.
The log is bounded by copy and truncate, which works because all writers append (O_APPEND). Only lines written between
the copy and the truncation are lost.
"""

import logging
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from gpushare.process.bounded_read import read_end

LOG = logging.getLogger(__name__)
MAX_BYTES = 4 * 1024 * 1024
"""The size of each log; one older file of the same size is kept. 4 MiB hold some 2,000 clients."""

_TAIL_BYTES = 64 * 1024
_NOISE = re.compile(
    r"Accepting connection|NEW UI|Cmd:|UI closed|User did not send valid credentials"
    r"|\] \[\d+\] [\dA-Fa-f:.]+, "  # the device above its clients
    r"|\] (Server \d+ not found|[A-Z]+|[\d.]+[MG]?)$"  # answers to our own commands
)
_TROUBLE = re.compile(r"Failed|An instance of this daemon|Only root user|rror:|fatal GPU")


class DaemonLog:
    """The logs in `directory`, each of at most `max_bytes`."""

    def __init__(self, directory: Path, max_bytes: int = MAX_BYTES) -> None:
        self._directory = directory
        self._max_bytes = max_bytes
        self._path = directory / "control.log"
        self._mark = 0

    def append(self) -> BinaryIO:
        """A file for a daemon to append to. `last_relevant_line` ignores earlier lines from now on."""
        self._directory.mkdir(mode=0o700, exist_ok=True)
        self.mark()
        return self._path.open("ab")

    def mark(self, size: int | None = None) -> None:
        """`last_relevant_line` ignores lines before now, or before the log had this `size`."""
        self._mark = self.size() if size is None else size

    def rotate(self) -> None:
        """Keep each log in the directory below its bound. Raises OSError where it cannot be truncated."""
        for path in self._directory.glob("*.log"):
            if path.stat().st_size <= self._max_bytes:
                continue
            partial = path.with_suffix(".log.new")
            try:
                shutil.copyfile(path, partial)
                partial.replace(path.with_suffix(".log.1"))
            except OSError as error:  # no room for a second one: the bound counts for more than old lines
                LOG.warning("%s is not kept: %s", path, error)
                with suppress(OSError):
                    partial.unlink(missing_ok=True)
            with path.open("r+b") as log:
                log.truncate(0)
            self._mark = 0

    def last_relevant_line(self) -> str:
        """The last line since the mark that names an error, else the last that is no noise, else an empty string."""
        lines = [line for line in self._tail() if line and not _NOISE.search(line)]
        troubles = [line for line in lines if _TROUBLE.search(line)]
        return (troubles or lines or [""])[-1]

    def size(self) -> int:
        """0 where it is not there or cannot be read."""
        try:
            return self._path.stat().st_size
        except OSError:
            return 0

    def _tail(self) -> list[str]:
        size = self.size()
        try:
            return read_end(self._path, min(self._mark, size), _TAIL_BYTES).decode(errors="replace").splitlines()
        except OSError:  # such as EIO: the daemon is looked after without its words
            return []
