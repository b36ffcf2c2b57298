"""A message in the log once per change, for what is tried again and again.

Guarantees: of the same key, a message that equals the last one logged is not logged again until `clear`; a recovery is
logged only where a message was logged before it.
"""

import logging
from collections.abc import Collection, Hashable


class LogOnChange:
    """A log for loops that meet the same problem at every turn. Keys tell problems apart, such as a GPU's UUID."""

    def __init__(self, log: logging.Logger, level: int = logging.WARNING) -> None:
        """`level`: of problems; recoveries are logged at INFO."""
        self._log = log
        self._level = level
        self._last: dict[Hashable, str] = {}

    def log(self, message: str, *args: object, key: Hashable = "") -> bool:
        """Logs `message % args`, unless it is the last message of `key`. Returns whether it was logged."""
        text = message % args if args else message
        if self._last.get(key) == text:
            return False
        self._last[key] = text
        self._log.log(self._level, "%s", text)
        return True

    def clear(self, key: Hashable = "", recovery: str = "", *args: object) -> bool:
        """The problem of `key` is over: its next message is logged again. Returns whether there was a problem.

        `recovery`: a line to log in that case; none if empty.
        """
        if self._last.pop(key, None) is None:
            return False
        if recovery:
            self._log.info(recovery, *args)
        return True

    def keep(self, keys: Collection[Hashable]) -> None:
        """Forgets every other key, as `clear` does, without a line."""
        self._last = {key: text for key, text in self._last.items() if key in keys}
