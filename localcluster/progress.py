"""Runs long commands and shows the elapsed time: a live line in a terminal, a line every 20 s elsewhere.

The command's own output goes to a log, whose end is shown after a failure.
"""

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO

from localcluster.errors import LocalClusterError

_TAIL_LINES = 25


def say(line: str) -> None:
    """Prints a line for the user to stderr; stdout is for results such as paths and JSON."""
    print(line, file=sys.stderr, flush=True)


class _Ticker:
    """Shows how long a step has taken so far."""

    def __init__(self, label: str, out: TextIO) -> None:
        self.label, self.out, self.live = label, out, out.isatty()
        self.started = time.monotonic()
        self.next_line = 0.0 if self.live else 20.0

    def elapsed(self) -> float:
        return time.monotonic() - self.started

    def tick(self) -> None:
        if self.elapsed() < self.next_line:
            return
        if self.live:
            print(f"\r{self.label} … {self.elapsed():.0f} s ", end="", file=self.out, flush=True)
            self.next_line = self.elapsed() + 1
        else:
            print(f"{self.label} … {self.elapsed():.0f} s", file=self.out, flush=True)
            self.next_line += 20

    def finish(self, word: str) -> None:
        start = "\r" if self.live else ""
        print(f"{start}{self.label}: {word} after {self.elapsed():.1f} s", file=self.out, flush=True)


def run_long(
    label: str,
    argv: Sequence[str | Path],
    log: Path,
    *,
    limit_s: float,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> None:
    """Runs `argv`, appending its output to `log`.

    Raises LocalClusterError with the end of the log if it fails, and one with its path after `limit_s`.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    ticker = _Ticker(label, sys.stderr)
    with log.open("ab") as output:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=env, cwd=cwd)
        try:
            while (code := _poll(process)) is None:
                ticker.tick()
                if ticker.elapsed() > limit_s:
                    raise LocalClusterError(f"{label}: no end after {limit_s:.0f} s; see {log}")
        finally:
            process.kill()
            process.wait()
    ticker.finish("done" if code == 0 else f"failed with exit code {code}")
    if code != 0:
        raise LocalClusterError(f"{label} failed; the end of {log}:\n{tail(log)}")


def _poll(process: subprocess.Popen[bytes]) -> int | None:
    try:
        return process.wait(timeout=0.5)
    except subprocess.TimeoutExpired:
        return None


def tail(log: Path, lines: int = _TAIL_LINES) -> str:
    """The last lines of a log, indented; empty if there is no log."""
    if not log.exists():
        return ""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 16384))
        text = file.read().decode(errors="replace")
    return "\n".join("    " + line for line in text.splitlines()[-lines:])
