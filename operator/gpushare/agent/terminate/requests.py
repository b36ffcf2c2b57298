"""A request to end a client: which process, why, how, and the event that says so afterwards. Pure.

Each reason has a module that decides and makes requests (`departure_guard`, `faulted`, `max_wait`, `enforcement`,
`idle_places`, `shortage`). `executor` carries them out, and knows the reasons only by their order.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from signal import Signals

from gpushare.agent.process.processes import ProcessIdentity
from gpushare.api.conditions import EventReason
from gpushare.api.gpunode import Uuid
from gpushare.kube.client import Object
from gpushare.kube.events.event import Event


class TerminationReason(StrEnum):
    """Why a client is ended, in the order in which the reasons take their turns. Its value is the metrics' `cause`."""

    DEPARTURE = "departure"  # its pod departs
    FAULT = "fault"  # its contexts were lost with a fault, and faultTimeout is over
    MAX_WAIT = "maxWait"  # it was in the way of a new MPS daemon for longer than maxWait
    VIOLATION = "violation"  # above its grant, in memory or in processes, under `enforcement: Terminate`
    IDLE = "idle"  # it launched nothing while others waited for a place, and its share says `idleAfter`
    SHORTAGE = "shortage"  # its GPU is short of memory that it borrows, under `whenShort: Terminate`

    @property
    def order(self) -> int:
        """The lowest takes its turn first."""
        return tuple(TerminationReason).index(self)

    @property
    def clients(self) -> str:
        """Whom it ends, for the log."""
        return _CLIENTS[self]


_CLIENTS = {
    TerminationReason.DEPARTURE: "clients of departing pods",
    TerminationReason.FAULT: "faulted clients",
    TerminationReason.MAX_WAIT: "clients whose share's maxWait is over",
    TerminationReason.VIOLATION: "processes that violate their grant",
    TerminationReason.IDLE: "clients that keep a place and launch nothing",
    TerminationReason.SHORTAGE: "borrowers of memory",
}


@dataclass(frozen=True, slots=True)
class TerminationRequest:
    """One process that is to be ended now: its contexts through the MPS daemon or, with `signal`, by that signal.

    `pod`: whom the event is about, as `reference` makes it; None: no event, since the process belongs to no pod.
    `who` and `why` complete the event's sentence, see `ended_event`. `deadline`: CLOCK_BOOTTIME seconds; of one reason
    the earliest comes first.

    A signal is sent once, unless it was sent before `since` (CLOCK_BOOTTIME seconds), and only after the MPS daemon was
    asked to end the contexts of `after`. `past_mps`: it is not sent to a process that the daemon lists as a client.
    """

    reason: TerminationReason
    uuid: Uuid
    process: ProcessIdentity
    pod: Object | None
    who: str
    why: str
    deadline: float = math.inf
    signal: Signals | None = None
    since: float = 0.0
    after: tuple[ProcessIdentity, ...] = ()
    past_mps: bool = False

    @property
    def asks_daemon(self) -> bool:
        """Whether the GPU's MPS daemon has to answer for it, or for what comes before it."""
        return self.signal is None or self.past_mps or bool(self.after)


def next_signal(now: float, due: float, sent: Mapping[Signals, float], kill_after: float | None) -> Signals | None:
    """SIGTERM once it is due, then SIGKILL; None: nothing now.

    `due`: from when on. `sent`: when each signal was sent. `kill_after`: seconds from SIGTERM to SIGKILL, such as the
    grace period of its pod; None: the process belongs to no pod and is never signalled. All times are CLOCK_BOOTTIME
    seconds.
    """
    if now < due or kill_after is None:
        return None
    if Signals.SIGTERM not in sent:
        return Signals.SIGTERM
    return Signals.SIGKILL if Signals.SIGKILL not in sent and now >= sent[Signals.SIGTERM] + kill_after else None


def ended_event(request: TerminationRequest) -> Event | None:
    """The event on the pod once the request was carried out: one for each process, since a container may have several.

    "Ended the CUDA contexts of process 10 WHO WHY" or "Sent SIGTERM to process 10 WHO WHY".
    """
    if request.pod is None:
        return None
    process, number = request.process, request.signal
    done = "Ended the CUDA contexts of" if number is None else f"Sent {number.name} to"
    action = "TerminateClient" if number is None else "EndProcess"
    return Event(
        request.pod,
        "Normal" if request.reason in (TerminationReason.DEPARTURE, TerminationReason.MAX_WAIT) else "Warning",
        EventReason.CLIENT_TERMINATED if number is None else EventReason.PROCESS_ENDED,
        "EndFaultedClient" if request.reason is TerminationReason.FAULT else action,
        f"{done} process {process.pid}{request.who}{request.why}",
        subject=f"{process.pid}/{process.started}",
        happened=True,
    )
