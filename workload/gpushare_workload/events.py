"""What a program prints: one JSON line for each event on standard output. Prose goes to standard error.

Guarantees: each line is a complete JSON object and is flushed at once, so that `kubectl logs` shows it while the
program runs.
"""

import json
import sys
import time
from collections.abc import Sequence
from typing import Any, TextIO


class JsonLines:
    """Writes the events of one scenario or command. `seconds` counts from the construction of the writer."""

    def __init__(self, scenario: str, stream: TextIO | None = None) -> None:
        self._scenario = scenario
        self._stream = stream or sys.stdout
        self._began = time.monotonic()

    def emit(self, event: str, **fields: Any) -> None:
        """`event` names what happened. Fields must be JSON values and carry their units in their names."""
        line = {
            "scenario": self._scenario,
            "event": event,
            "seconds": round(time.monotonic() - self._began, 3),
            **fields,
        }
        print(json.dumps(line), file=self._stream, flush=True)


def say(text: str) -> None:
    """Prints prose for people."""
    print(text, file=sys.stderr, flush=True)


def without_folders(words: Sequence[str]) -> tuple[str, ...]:
    """A command as a result records it: of each absolute path, also behind `--option=`, the last name alone.

    The folders of the machine that measured say nothing to readers of its figures.
    """
    recorded = []
    for word in words:
        option, equals, value = word.rpartition("=")
        name = value.rstrip("/").rpartition("/")[2] if value.startswith("/") else ""
        recorded.append(f"{option}{equals}{name}" if name else word)
    return tuple(recorded)


class WrongError(Exception):
    """A check failed: a result is wrong, or a limit differs from the grant. The text says which."""
