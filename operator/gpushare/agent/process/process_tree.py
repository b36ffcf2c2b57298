"""Whether a process is left the time to end by itself when its container is told to stop.

Only a container's main process is sent SIGTERM. When that one ends, the kernel or the runtime kills everything else in
the container at once. So catching SIGTERM helps a process alone as long as nothing that it hangs on dies of the signal.
"""

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpushare.agent.process.processes import Owner, owner_of, text_of

_SIGTERM = 1 << (signal.SIGTERM - 1)
MOST_ANCESTORS = 32


@dataclass(frozen=True, slots=True)
class Ancestor:
    """`acts`: catches SIGTERM, or takes it by waiting for it (blocked: tini, dumb-init). `first`: PID 1 in there."""

    pid: int
    acts: bool
    ignores: bool
    first: bool


def fatal_ancestor(ancestors: Sequence[Ancestor]) -> int | None:
    """PID of the ancestor whose end by SIGTERM takes the process along; None: there is none.

    `ancestors`: from the parent to the container's main process; empty for that one itself. A PID 1 that does nothing
    about SIGTERM never gets it (the kernel drops it), and so nobody below it does. Does not know of a main process
    that catches the signal and then leaves before its children: that one is trusted.
    """
    if not ancestors:
        return None
    main = ancestors[-1]
    if main.ignores or (main.first and not main.acts):
        return None
    return next((one.pid for one in ancestors if not one.acts and not one.ignores), None)


def ancestors(pid: int, owner: Owner, proc: Path = Path("/proc")) -> list[Ancestor]:
    """Of a process in its own container, its parent first. What has gone by now ends the list."""
    found: list[Ancestor] = []
    parent = _parent(pid, proc)
    while parent > 1 and len(found) < MOST_ANCESTORS:
        try:
            if owner_of(text_of(proc / str(parent) / "cgroup")) != owner:
                break
            status = text_of(proc / str(parent) / "status")
        except OSError:
            break
        fields = dict(line.split(":", 1) for line in status.split("\n") if ":" in line)
        found.append(_ancestor(parent, fields))
        parent = int(fields.get("PPid", "0"))
    return found


def _ancestor(pid: int, status: dict[str, str]) -> Ancestor:
    def has(mask: str) -> bool:
        return bool(int(status.get(mask, "0"), 16) & _SIGTERM)

    inside = status.get("NSpid", "").split()
    return Ancestor(pid, has("SigCgt") or has("SigBlk"), has("SigIgn"), inside[-1:] == ["1"])


def _parent(pid: int, proc: Path) -> int:
    try:
        for line in text_of(proc / str(pid) / "status").split("\n"):
            if line.startswith("PPid:"):
                return int(line.removeprefix("PPid:"))
    except OSError:
        pass
    return 0
