"""Which attach of a process is that of `cuInit`, and which is a context's. Pure, but for looking at sockets.

`cuInit` connects once to see whether a daemon is there, says nothing and hangs up; then it attaches, for the process.
Each later attach of the process is one context; a program that replaces itself (`exec`) looks again first (measured).

Guarantees: a look counts once, also where it is seen to end only after the attach that follows it. An attach of a
process that was not seen to look counts as a context's.
Does not guarantee that a process is honest: one that looks before each attach makes contexts that do not count here.
Who is listed as a client, and has no place, is seen there (`holders`).
"""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gpushare.mps.identity import Identity
from gpushare.mps.packets import has_hung_up

MOST_OF_POD = 64
"""Processes of one pod that have looked and have not attached; the latest count."""
MOST_PODS = 512
"""More than a node has."""


class Looks:
    """Those of one GPU's clients."""

    def __init__(self, hung_up: Callable[[socket.socket], bool] = has_hung_up) -> None:
        self._hung_up = hung_up
        self._looked: dict[str, dict[Identity, None]] = {}
        """By pod, those who looked last come last."""
        self._silent: dict[Identity, list[socket.socket]] = {}
        """The connections of each process that have said nothing yet."""

    @contextmanager
    def listening(self, process: Identity, sock: socket.socket) -> Iterator[Callable[[], bool]]:
        """While the block runs, the connection may be a look. Gives whether it has not been counted yet."""
        silent = self._silent.setdefault(process, [])
        silent.append(sock)
        try:
            yield lambda: sock in silent
        finally:
            if sock in silent:
                silent.remove(sock)
            if not silent and self._silent.get(process) is silent:
                del self._silent[process]

    def looked(self, process: Identity, pod: str) -> None:
        """A connection of the process ended and had said nothing."""
        known = self._looked.pop(pod, {})
        known.pop(process, None)
        if len(known) >= MOST_OF_POD:
            del known[next(iter(known))]
        known[process] = None
        if len(self._looked) >= MOST_PODS:
            del self._looked[next(iter(self._looked))]
        self._looked[pod] = known

    def has_looked(self, process: Identity, pod: str) -> bool:
        """Its next attach is that of `cuInit`, as far as is known now."""
        return process in self._looked.get(pod, {}) or any(map(self._hung_up, self._silent.get(process, [])))

    def is_context(self, process: Identity, pod: str) -> bool:
        """The process asks to attach: tells whether that is for a context."""
        silent = self._silent.get(process, [])
        ended = [sock for sock in silent if self._hung_up(sock)]
        silent[:] = [sock for sock in silent if sock not in ended]
        known = self._looked.get(pod, {})
        looked = process in known
        known.pop(process, None)
        if not known:
            self._looked.pop(pod, None)
        return not (looked or ended)
