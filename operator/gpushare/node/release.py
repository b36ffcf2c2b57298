"""Giving a GPU back: when its daemon has ended, and what is undone then, in which order.

Idempotent by what is on disk: `stop` in daemon.json is written first and that file goes last, so an agent that dies at
any point goes on where the last one was.
"""

import shutil
from dataclasses import dataclass

from gpushare.mps.layout import GpuDir
from gpushare.mps.wire import DaemonState

SILENT_SECONDS = 15.0
"""A supervisor that wrote nothing for so long does not run: it writes every 2 s, also while it waits for clients."""


@dataclass(frozen=True, slots=True)
class StopEvidence:
    """`stop_age`: seconds since daemon.json said stop; `now` is CLOCK_BOOTTIME."""

    state: DaemonState | None
    stop_age: float
    control_alive: bool
    server_shown: bool
    """NVML shows the server's context."""
    now: float


def waits_for(evidence: StopEvidence) -> str | None:
    """What the release still waits for, as a sentence; None once nothing of the daemon is left."""
    state = evidence.state
    if state is not None and state.stopped:
        return None
    silent_for = evidence.stop_age if state is None else min(evidence.stop_age, evidence.now - state.heartbeat)
    if silent_for < SILENT_SECONDS:
        return "waiting for the MPS pod to end the daemon"
    if evidence.control_alive or evidence.server_shown:
        return "the MPS pod is silent but its daemon still runs: end that pod on this node"
    return None


def remove(directory: GpuDir) -> None:
    """Removes a GPU's directory, daemon.json last. OSError: try again."""
    if not directory.path.is_dir():
        return
    for entry in directory.path.iterdir():
        if entry == directory.wanted:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink(missing_ok=True)
    directory.wanted.unlink(missing_ok=True)
    directory.path.rmdir()
