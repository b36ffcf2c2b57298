"""Events on the GpuNode about faults of GPUs and MPS daemons. Pure: states are handed in, times in seconds.

Daemon and supervisor count what happens to them. Each change between two turns becomes one event, with the daemon's own
line. No client is blamed for a fault: server log and Xid name innocent ones (measured), so the note says "one of". What
happened while no agent ran is reported by `downtime`.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from gpushare.agent.reconcile.readiness import Readiness
from gpushare.agent.usage.usage import Reading
from gpushare.api import names
from gpushare.api.conditions import DaemonReason, EventReason
from gpushare.api.gpunode import Uuid
from gpushare.kube.events import Event
from gpushare.kube.pods import first_names
from gpushare.mps.wire import DaemonState
from gpushare.nvml.types import Xid

XID_SECONDS = 6.0
"""An Xid waits so long for the fault that it belongs to: the supervisor polls every 2 s."""
MAX_SUSPECTS_NAMED = 8
SUSPECT_SECONDS = 10.0
"""A client that has ended may be the cause for so long: a fault is noticed after the end that brought it."""


@dataclass(frozen=True, slots=True)
class GpuHealth:
    """One GPU of a share now.

    `clients`: pods that have clients or hold a part of it, as namespace/name. `absent`: when each of them was last
    known to hold none yet, as far as that is known.
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


def gpu_health(
    readiness: Readiness,
    state: DaemonState | None,
    reading: Reading | None,
    holders: Collection[str],
    absent: Mapping[str, float],
    uuid: Uuid,
) -> GpuHealth:
    """`holders`: pods that hold a part of the GPU, as namespace/name: a client can start and end between two readings.
    `absent`: when pods held none yet, also of other GPUs.
    """
    clients = {f"{usage.namespace}/{usage.pod}" for usage in reading.usages if usage.pod} if reading else set()
    clients |= set(holders)
    absent = {client: at for client, at in absent.items() if client in clients}
    health = GpuHealth(
        uuid, reason=readiness.reason, message=readiness.message, clients=tuple(sorted(clients)), absent=absent
    )
    if state is None:
        return health
    return replace(
        health,
        restarts=state.restarts,
        servers_lost=state.servers_lost,
        faults=state.faults,
        last_failure=state.last_failure,
        last_fault=state.last_fault,
    )


@dataclass(frozen=True, slots=True)
class _Client:
    """`last`: when it was seen last. `absent`: when it held no part of the GPU yet."""

    last: float
    absent: float


@dataclass(slots=True)
class _Known:
    health: GpuHealth
    clients: dict[str, _Client] = field(default_factory=dict)
    xids: list[tuple[float, Xid]] = field(default_factory=list)


class FaultReports:
    def __init__(self, node: str) -> None:
        self._regarding = {"apiVersion": names.API_VERSION, "kind": "GpuNode", "name": node}
        self._known: dict[Uuid, _Known] = {}

    def add_xid(self, xid: Xid, now: float) -> None:
        """One that NVML reported. An Xid of a GPU that no share has is ignored."""
        if xid.uuid in self._known:
            self._known[xid.uuid].xids.append((now, xid))

    def update(self, gpus: Iterable[GpuHealth], now: float) -> list[Event]:
        """The events about what changed since the last call. `gpus`: all GPUs of shares."""
        found: list[Event] = []
        present = {health.uuid: health for health in gpus}
        self._known = {uuid: known for uuid, known in self._known.items() if uuid in present}
        for uuid, health in present.items():
            known = self._known.get(uuid)
            if known is None:
                self._known[uuid] = known = _Known(health)
                _remember(known, health, now)
                found += self._reasons(health, replace(health, reason=DaemonReason.READY))
                continue
            _remember(known, health, now)
            found += self._changes(known, health, now)
            known.health = health
        return found

    def _changes(self, known: _Known, health: GpuHealth, now: float) -> Iterator[Event]:
        before = known.health
        if health.faults > before.faults:
            yield self._event(EventReason.GPU_FAULT, health.uuid, _fault_note(health, known))
            known.xids.clear()
        if health.restarts > before.restarts or health.servers_lost > before.servers_lost:
            note = f"GPU {health.uuid}: {health.last_failure or 'the MPS daemon ended'}; its clients got error 806"
            yield self._event(EventReason.DAEMON_RESTARTED, health.uuid, note)
        yield from self._reasons(health, before)
        without_fault = [xid for at, xid in known.xids if now - at >= XID_SECONDS]
        known.xids = [(at, xid) for at, xid in known.xids if now - at < XID_SECONDS]
        if without_fault:
            xids = _xids(without_fault)
            note = f"GPU {health.uuid}: {xids}, without a fault of the MPS server. {_suspicion(_suspects(known))}"
            yield self._event(EventReason.GPU_FAULT, health.uuid, note)

    def _reasons(self, health: GpuHealth, before: GpuHealth) -> Iterator[Event]:
        for reason, event_reason in _EVENT_REASONS.items():
            if health.reason is reason and before.reason is not reason:
                yield self._event(event_reason, health.uuid, f"GPU {health.uuid}: {health.message}")

    def _event(self, reason: EventReason, uuid: Uuid, note: str) -> Event:
        return Event(self._regarding, "Warning", reason, "Supervise", note, subject=uuid, happened=True)


_EVENT_REASONS: Mapping[DaemonReason, EventReason] = {
    DaemonReason.GPU_LOST: EventReason.GPU_LOST,
    DaemonReason.CLIENT_TABLE_FULL: EventReason.CLIENT_TABLE_FULL,
}


def _remember(known: _Known, health: GpuHealth, now: float) -> None:
    """While no client is left, the last ones stay suspects, however long ago they ended."""
    for name in health.clients:
        # A pod that was replaced by one of the same name is known since the first of them.
        before = known.clients.get(name)
        known.clients[name] = _Client(now, before.absent if before else health.absent.get(name, -math.inf))
    if health.clients:
        known.clients = {name: it for name, it in known.clients.items() if now - it.last < SUSPECT_SECONDS}


def _suspects(known: _Known) -> dict[str, float]:
    """When each was seen last. Pods without a slot when the Xid arrived are not suspects: most likely they wait."""
    reported_at = max((at for at, _ in known.xids), default=math.inf)
    return {name: it.last for name, it in known.clients.items() if it.absent < reported_at}


def _fault_note(health: GpuHealth, known: _Known) -> str:
    xids = f" {_xids([xid for _, xid in known.xids])}." if known.xids else ""
    return f"GPU {health.uuid}: {health.last_fault}.{xids} {_suspicion(_suspects(known))}"


def _xids(xids: list[Xid]) -> str:
    numbers = ", ".join(dict.fromkeys(str(xid.number) for xid in xids))
    return f"The driver logged Xid {numbers}"


def _suspicion(seen: Mapping[str, float]) -> str:
    """The clients that were seen last come first, since not all may be named."""
    if not seen:
        return "Which process caused it is not known: log and Xid may name an innocent one."
    clients = first_names(sorted(seen, key=lambda client: (-seen[client], client)), MAX_SUSPECTS_NAMED)
    return f"The cause is one of its clients, and log and Xid may name an innocent one: {clients}."
