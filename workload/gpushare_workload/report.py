"""What a scenario says: one JSON line per event on standard output, prose on standard error.

A line is complete JSON, flushed at once, so that `kubectl logs` shows it while the program runs.
"""

import json
import sys
import time
from typing import Any, TextIO


class Report:
    def __init__(self, scenario: str, stream: TextIO | None = None) -> None:
        self._scenario = scenario
        self._stream = stream or sys.stdout
        self._began = time.monotonic()

    def emit(self, event: str, **fields: Any) -> None:
        """`event` names what happened; fields must be JSON values, with units in their names."""
        line = {
            "scenario": self._scenario,
            "event": event,
            "seconds": round(time.monotonic() - self._began, 3),
            **fields,
        }
        print(json.dumps(line), file=self._stream, flush=True)


class WrongError(Exception):
    """A check failed: the result is wrong, or a limit is not what was granted. The text says which."""
