"""What befell a GPU or its daemon, told once on the GpuNode. Pure: looks are handed in, times in seconds.

Daemon and supervisor count what befalls them; what changed between two looks is told, with the daemon's own line. A
fault is put down to nobody: server log and Xid name innocents (measured), so the text says "one of". What happened
while no agent ran is told by `absence`.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from gpushare.agent.reconcile.readiness import Readiness
from gpushare.agent.usage.usage import Reading
from gpushare.api import names
from gpushare.api.conditions import DaemonReason, EventReason
from gpushare.api.gpunode import Uuid
from gpushare.kube.event_recorder import Event
from gpushare.mps.wire import DaemonState
from gpushare.nvml.types import Xid

XID_SECONDS = 6.0
"""So long an Xid waits for the fault that it belongs to: the supervisor looks every 2 s."""
SUSPECTS_TOLD = 8
SUSPECT_SECONDS = 10.0
"""So long a client that has gone may still be the cause: a fault is found out after the death that brought it."""


@dataclass(frozen=True, slots=True)
class GpuLook:
    """One GPU of a share now.

    `clients`: pods that have clients or hold a part of it, as namespace/name. `absent`: when those held none yet, where
    that is known.
    """

    uuid: Uuid
    restarts: int = 0
    servers_lost: int = 0
    faults: int = 0
    last_failure: str = ""
    last_fault: str = ""
    reason: DaemonReason = DaemonReason.READY
    message: str = ""
    clients: tuple[str, ...] = ()
    absent: Mapping[str, float] = field(default_factory=dict)


def look_at(
    verdict: Readiness,
    state: DaemonState | None,
    reading: Reading | None,
    holders: Collection[str],
    absent: Mapping[str, float],
    uuid: Uuid,
) -> GpuLook:
    """`holders`: pods that have a part of the GPU, as namespace/name: a client can come and die between readings.
    `absent`: when pods held none yet, also of other GPUs.
    """
    clients = {f"{usage.namespace}/{usage.pod}" for usage in reading.usages if usage.pod} if reading else set()
    clients |= set(holders)
    absent = {client: at for client, at in absent.items() if client in clients}
    look = GpuLook(uuid, reason=verdict.reason, message=verdict.message, clients=tuple(sorted(clients)), absent=absent)
    if state is None:
        return look
    return replace(
        look,
        restarts=state.restarts,
        servers_lost=state.servers_lost,
        faults=state.faults,
        last_failure=state.last_failure,
        last_fault=state.last_fault,
    )


@dataclass(frozen=True, slots=True)
class _Client:
    """When it was there last, and when it was not there yet."""

    last: float
    absent: float


@dataclass(slots=True)
class _Known:
    look: GpuLook
    clients: dict[str, _Client] = field(default_factory=dict)
    xids: list[tuple[float, Xid]] = field(default_factory=list)


class FaultReports:
    def __init__(self, node: str) -> None:
        self._regarding = {"apiVersion": names.API_VERSION, "kind": "GpuNode", "name": node}
        self._known: dict[Uuid, _Known] = {}

    def xid(self, xid: Xid, now: float) -> None:
        """NVML told of it. Of a GPU that no share has it is passed over."""
        if xid.uuid in self._known:
            self._known[xid.uuid].xids.append((now, xid))

    def look(self, looks: Iterable[GpuLook], now: float) -> list[Event]:
        found: list[Event] = []
        present = {look.uuid: look for look in looks}
        self._known = {uuid: known for uuid, known in self._known.items() if uuid in present}
        for uuid, look in present.items():
            known = self._known.get(uuid)
            if known is None:
                self._known[uuid] = known = _Known(look)
                _remember(known, look, now)
                found += self._states(look, replace(look, reason=DaemonReason.READY))
                continue
            _remember(known, look, now)
            found += self._changes(known, look, now)
            known.look = look
        return found

    def _changes(self, known: _Known, look: GpuLook, now: float) -> Iterator[Event]:
        before = known.look
        if look.faults > before.faults:
            yield self._news(EventReason.GPU_FAULT, look.uuid, _fault_note(look, known))
            known.xids.clear()
        if look.restarts > before.restarts or look.servers_lost > before.servers_lost:
            note = f"GPU {look.uuid}: {look.last_failure or 'the MPS daemon ended'}; its clients got error 806"
            yield self._news(EventReason.DAEMON_RESTARTED, look.uuid, note)
        yield from self._states(look, before)
        late = [xid for at, xid in known.xids if now - at >= XID_SECONDS]
        known.xids = [(at, xid) for at, xid in known.xids if now - at < XID_SECONDS]
        if late:
            note = f"GPU {look.uuid}: {_xids(late)}, without a fault of the MPS server. {_suspicion(_suspects(known))}"
            yield self._news(EventReason.GPU_FAULT, look.uuid, note)

    def _states(self, look: GpuLook, before: GpuLook) -> Iterator[Event]:
        for reason, told in _STATES.items():
            if look.reason is reason and before.reason is not reason:
                yield self._news(told, look.uuid, f"GPU {look.uuid}: {look.message}")

    def _news(self, reason: EventReason, uuid: Uuid, note: str) -> Event:
        kind: Literal["Normal", "Warning"] = "Warning"
        return Event(self._regarding, kind, reason, "Supervise", note, subject=uuid, happened=True)


_STATES: Mapping[DaemonReason, EventReason] = {
    DaemonReason.GPU_LOST: EventReason.GPU_LOST,
    DaemonReason.CLIENT_TABLE_FULL: EventReason.CLIENT_TABLE_FULL,
}


def _remember(known: _Known, look: GpuLook, now: float) -> None:
    """Where none are left, those who were there last are the suspects, however long ago that was."""
    for name in look.clients:
        # A pod that was replaced by one of the same name is known since the first of them.
        before = known.clients.get(name)
        known.clients[name] = _Client(now, before.absent if before else look.absent.get(name, -math.inf))
    if look.clients:
        known.clients = {name: it for name, it in known.clients.items() if now - it.last < SUSPECT_SECONDS}


def _suspects(known: _Known) -> dict[str, float]:
    """Whoever held nothing when the driver had told of the fault is none: most likely it waits to be let in."""
    told = max((at for at, _ in known.xids), default=math.inf)
    return {name: it.last for name, it in known.clients.items() if it.absent < told}


def _fault_note(look: GpuLook, known: _Known) -> str:
    xids = f" {_xids([xid for _, xid in known.xids])}." if known.xids else ""
    return f"GPU {look.uuid}: {look.last_fault}.{xids} {_suspicion(_suspects(known))}"


def _xids(xids: list[Xid]) -> str:
    numbers = ", ".join(dict.fromkeys(str(xid.number) for xid in xids))
    return f"The driver logged Xid {numbers}"


def _suspicion(seen: Mapping[str, float]) -> str:
    """Who was there last comes first: not all may be told."""
    if not seen:
        return "Which process is to blame is not known: log and Xid may name an innocent one."
    clients = sorted(seen, key=lambda client: (-seen[client], client))
    more = f" and {len(clients) - SUSPECTS_TOLD} more" if len(clients) > SUSPECTS_TOLD else ""
    told = ", ".join(clients[:SUSPECTS_TOLD])
    return f"The cause is one of its clients, and log and Xid may name an innocent one: {told}{more}."
