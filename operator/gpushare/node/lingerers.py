"""Clients that a fatal fault left behind, and what comes next for each. Pure: times are CLOCK_BOOTTIME seconds."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from signal import Signals

from gpushare.api.gpunode import ShareName, Uuid
from gpushare.api.gpushare import GpuShare
from gpushare.mps.wire import DaemonState
from gpushare.node.processes import Process
from gpushare.node.verdict import FRESH_SECONDS

TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Fault:
    """A GPU of `share` whose server was hit at `since` and waits for `clients`, by PID. `timeout`: seconds."""

    uuid: Uuid
    share: ShareName
    since: float
    timeout: float
    clients: tuple[int, ...]


def faults_of(states: Mapping[Uuid, DaemonState], shares: Mapping[ShareName, GpuShare], now: float) -> list[Fault]:
    """By the fresh word of supervisors whose share is known: a timeout that is not known is not over."""
    return [
        Fault(uuid, state.share, state.fault_since, float(share.fault_timeout_seconds), tuple(state.faulted_clients))
        for uuid, state in states.items()
        if (share := shares.get(state.share)) is not None
        and state.fault_since is not None
        and state.faulted_clients
        and now - state.heartbeat <= FRESH_SECONDS
    ]


def step(now: float, due: float, sent: Mapping[Signals, float], grace: float | None) -> Signals | None:
    """The signal that comes next. `due`: when the timeout is over. `sent`: when each was sent first. `grace`: of its
    pod, None: of no pod.
    """
    if now < due or grace is None:
        return None
    if Signals.SIGTERM not in sent:
        return Signals.SIGTERM
    return Signals.SIGKILL if Signals.SIGKILL not in sent and now >= sent[Signals.SIGTERM] + grace else None


def started_at(process: Process) -> float:
    """When it started, in CLOCK_BOOTTIME seconds (proc(5): start times count from boot)."""
    return process.started / TICKS
