"""Copies of programs as child processes, each with its standard output read and its process group ended.

Guarantees:
- Whatever happens, no copy and no process of its process group is left: SIGTERM, then SIGKILL after END_SECONDS. Where
  we are killed ourselves, a process of ours (`keeper`) does it.
- A copy that prints without end costs bounded memory.
"""

import os
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType

from gpushare.kubectl.rules.trial.printed import (
    LINE_CHARACTERS,
    TAIL_CHARACTERS,
    TAIL_LINES,
    PrintedFigures,
    PrintedLine,
    last_lines,
)
from gpushare_workload.processes import keeper
from gpushare_workload.processes.stopping import Stop

END_SECONDS = 10.0
"""Time for a program to end between two kernels after SIGTERM."""
KILL_SECONDS = 10.0
READ_BYTES = 65536
MOST_LINES = 100_000
"""Lines with figures that are kept of each copy: the newest."""
COPY = "GPUSHARE_COPY"
"""The number of a copy, from 0: for programs that need a port or a directory each."""


@dataclass
class Copy:
    """One child process. `program`: its place among the programs of the comparison."""

    program: int
    number: int
    process: subprocess.Popen[bytes]
    began: float
    ended: float | None = None
    lines: deque[PrintedLine] = field(default_factory=lambda: deque(maxlen=MOST_LINES))
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL_LINES))

    @property
    def code(self) -> int | None:
        return self.process.returncode

    def last_lines(self) -> str:
        return last_lines(self.tail)


class CopyGroup:
    """Use it as a context manager: leaving it ends the copies."""

    def __init__(self, printed: PrintedFigures, stop: Stop, end_seconds: float = END_SECONDS) -> None:
        self.copies: list[Copy] = []
        self._printed, self._stop, self._end_seconds = printed, stop, end_seconds
        self._selector = selectors.DefaultSelector()
        self._rest: dict[int, bytearray] = {}
        self._keeper: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "CopyGroup":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def start(self, program: int, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Raises ValueError if there is no such program."""
        number = len(self.copies)
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**environment, COPY: str(number)},
                start_new_session=True,
            )
        except OSError as error:
            raise ValueError(f"{command[0]!r} cannot be started: {error.strerror}") from None
        self._keep(process.pid)
        self.copies.append(copy := Copy(program, number, process, time.monotonic()))
        for stream, counts in ((process.stdout, True), (process.stderr, False)):
            assert stream is not None  # noqa: S101 - pipes were asked for
            os.set_blocking(stream.fileno(), False)
            self._selector.register(stream, selectors.EVENT_READ, (copy, counts))

    def _keep(self, group: int) -> None:
        """Whoever kills us leaves the copies to the keeper."""
        if self._keeper is None:
            self._keeper = subprocess.Popen(
                [sys.executable, "-S", "-E", keeper.__file__, str(self._end_seconds)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        assert self._keeper.stdin is not None  # noqa: S101 - a pipe was asked for
        with suppress(BrokenPipeError):  # somebody has killed it: we go on without
            self._keeper.stdin.write(b"%d\n" % group)
            self._keeper.stdin.flush()

    def _dismiss_keeper(self) -> None:
        if self._keeper is not None:
            self._keeper.kill()
            self._keeper.wait()
            assert self._keeper.stdin is not None  # noqa: S101 - as above
            with suppress(BrokenPipeError):
                self._keeper.stdin.close()
            self._keeper = None

    def pump(
        self, until: float, done: Callable[[], bool] = lambda: False, often: Callable[[], None] | None = None
    ) -> bool:
        """Reads what the copies print until that moment (CLOCK_MONOTONIC), or until `done`. False: it was not done.

        `often` is called several times a second. Raises StoppedError.
        """
        while not done():
            self._stop.check()
            left = until - time.monotonic()
            if left <= 0:
                return False
            self._read(min(left, 0.1))
            if often is not None:
                often()
        return True

    def end(self) -> None:
        """Ends every process group, and waits for the copies. SIGINT and SIGTERM to us do not interrupt it."""
        self._signal(signal.SIGTERM)
        end = time.monotonic() + self._end_seconds
        while any(_group_lives(copy) for copy in self.copies) and time.monotonic() < end:
            self._read(0.05)
        self._signal(signal.SIGKILL)
        end = time.monotonic() + KILL_SECONDS
        while any(_group_lives(copy) for copy in self.copies) and time.monotonic() < end:
            self._read(0.05)
        for key in list(self._selector.get_map().values()):
            self._close(key.fileobj)
        self._selector.close()
        self._dismiss_keeper()

    def _signal(self, number: signal.Signals) -> None:
        for copy in self.copies:
            if _group_lives(copy):
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(copy.process.pid, number)

    def _read(self, seconds: float) -> None:
        """Reads what was printed for at most `seconds`, and notes which copies have ended."""
        if not self._selector.get_map():
            time.sleep(seconds)
        for key, _ in self._selector.select(seconds):
            try:
                chunk = os.read(key.fd, READ_BYTES)
            except BlockingIOError:
                continue
            copy, counts = key.data
            if not chunk:
                self._take(copy, bytes(self._rest.pop(key.fd, b"")), counts)
                self._close(key.fileobj)
                continue
            *lines, last = (self._rest.pop(key.fd, bytearray()) + chunk).split(b"\n")
            for line in lines:
                self._take(copy, bytes(line), counts)
            self._rest[key.fd] = last[: LINE_CHARACTERS + 1]
        for copy in self.copies:
            if copy.ended is None and copy.process.poll() is not None:
                copy.ended = time.monotonic()

    def _take(self, copy: Copy, line: bytes, counts: bool) -> None:
        text = line.decode(errors="replace").rstrip()
        if not text:
            return
        copy.tail.append(text[:TAIL_CHARACTERS])
        if counts and (figures := self._printed.read(time.monotonic(), text)) is not None:
            copy.lines.append(figures)

    def _close(self, stream: object) -> None:
        self._selector.unregister(stream)  # type: ignore[arg-type]
        stream.close()  # type: ignore[attr-defined]


def _group_lives(copy: Copy) -> bool:
    """Whether a process of the copy's group exists; the copy itself is reaped here."""
    copy.process.poll()
    try:
        os.killpg(copy.process.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
