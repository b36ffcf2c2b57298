"""Events on the GpuNode about faults of GPUs and MPS daemons. Pure: states are handed in, times in seconds.

Daemon and supervisor count what happens to them. Each change between two turns becomes one event, with the daemon's own
line. No client is blamed for a fault: server log and Xid name innocent ones (measured), so the note says "one of". What
happened while no agent ran is reported by `downtime`.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from gpushare.agent.attach.arrivals import NO_ATTACHES, Attaches
from gpushare.agent.observe.usage import Reading
from gpushare.agent.reconcile.readiness import Readiness
from gpushare.api import names
from gpushare.api.conditions import DaemonReason, EventReason
from gpushare.api.gpunode import Uuid
from gpushare.kube.events.event import Event
from gpushare.messages.wording import count_of, first_names
from gpushare.mps.wire import DaemonState
from gpushare.nvml.types import Xid

XID_SECONDS = 6.0
"""An Xid waits so long for the fault that it belongs to: the supervisor polls every 2 s."""
MAX_SUSPECTS_NAMED = 8
SUSPECT_SECONDS = 10.0
"""A client that has ended may be the cause for so long: a fault is noticed after the end that brought it."""


ARRIVAL_SECONDS = 60.0
"""Who attached so long before a fault is named with it."""
MAX_ARRIVALS_NAMED = 4


@dataclass(frozen=True, slots=True)
class ArrivedClient:
    """`pod`: namespace/name. `at`: CLOCK_BOOTTIME seconds."""

    pod: str
    container: str
    pid: int
    at: float


@dataclass(frozen=True, slots=True)
class GpuHealth:
    """One GPU of a share now.

    `clients`: pods that have clients or hold a part of it, as namespace/name. `absent`: when each of them was last
    known to hold none yet, as far as that is known. `arrived`: who attached, the latest first. `counted`: state.json
    was read; else the counts and their words say nothing.
    """

    uuid: Uuid
    counted: bool = True
    restarts: int = 0
    servers_lost: int = 0
    faults: int = 0
    last_failure: str = ""
    lost_contexts: int = 0
    last_fault: str = ""
    reason: DaemonReason = DaemonReason.READY
    message: str = ""
    clients: tuple[str, ...] = ()
    absent: Mapping[str, float] = field(default_factory=dict)
    arrived: tuple[ArrivedClient, ...] = ()


def gpu_health(
    readiness: Readiness,
    state: DaemonState | None,
    reading: Reading | None,
    holders: Collection[str],
    absent: Mapping[str, float],
    uuid: Uuid,
    attaches: Attaches = NO_ATTACHES,
    pods: Mapping[str, str] = MappingProxyType({}),
) -> GpuHealth:
    """`holders`: pods that hold a part of the GPU, as namespace/name: a client can start and end between two readings.
    One that has never attached has no client. `absent`: when pods held none yet, also of other GPUs. `pods`: the names
    of this node's pods by the uid in the names of their cgroups.
    """
    clients = {f"{usage.namespace}/{usage.pod}" for usage in reading.usages if usage.pod} if reading else set()
    clients |= set(holders) - attaches.without_client
    absent = {client: at for client, at in absent.items() if client in clients}
    health = GpuHealth(
        uuid,
        reason=readiness.reason,
        message=readiness.message,
        clients=tuple(sorted(clients)),
        absent=absent,
        arrived=tuple(
            ArrivedClient(pods[arrival.pod_uid], arrival.container, arrival.pid, arrival.at)
            for arrival in attaches.latest
            if arrival.pod_uid in pods
        ),
    )
    if state is None:
        return replace(health, counted=False)
    return replace(
        health,
        restarts=state.restarts,
        servers_lost=state.servers_lost,
        faults=state.faults,
        last_failure=state.last_failure,
        lost_contexts=state.lost_contexts,
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
    reported_lost: int
    """`lost_contexts` at the last event."""
    clients: dict[str, _Client] = field(default_factory=dict)
    xids: list[tuple[float, Xid]] = field(default_factory=list)


HARDWARE_XIDS = frozenset({48, 74, 79, 92, 94, 95, 119, 120, 140})
"""By NVIDIA's catalogue no program causes these: errors of memory that ECC does not correct (48, 92, 94, 95, 140), of
NVLink (74), of the GPU's own processor (119, 120), and a GPU that fell off the bus (79)."""


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
        events: list[Event] = []
        present = {health.uuid: health for health in gpus}
        self._known = {uuid: known for uuid, known in self._known.items() if uuid in present}
        for uuid, health in present.items():
            known = self._known.get(uuid)
            if known is None:
                self._known[uuid] = known = _Known(health, health.lost_contexts)
                _remember(known, health, now)
                events += self._reasons(health, replace(health, reason=DaemonReason.READY))
                continue
            _remember(known, health, now)
            if health.counted and not known.health.counted:  # these are past counts, as at the first sight of a GPU
                known.health = replace(health, reason=known.health.reason)
                known.reported_lost = health.lost_contexts
            counted = _counted(health, known.health)
            events += self._changes(known, counted, now)
            known.health = counted
        return events

    def _changes(self, known: _Known, health: GpuHealth, now: float) -> Iterator[Event]:
        before = known.health
        if has_counted(before.faults, health.faults):
            yield self._event(EventReason.GPU_FAULT, health.uuid, _fault_note(health, known, now))
            known.xids.clear()
        if has_counted(before.restarts, health.restarts) or has_counted(before.servers_lost, health.servers_lost):
            lost = lost_clients(health.last_failure, health.lost_contexts - known.reported_lost)
            known.reported_lost = health.lost_contexts
            note = f"GPU {health.uuid}: {lost}.{_recent(known, now)}"
            yield self._event(EventReason.DAEMON_RESTARTED, health.uuid, note)
        yield from self._reasons(health, before)
        without_fault = [xid for at, xid in known.xids if now - at >= XID_SECONDS]
        known.xids = [(at, xid) for at, xid in known.xids if now - at < XID_SECONDS]
        if without_fault:
            cause = _cause(without_fault, health, known, now)
            note = f"GPU {health.uuid}: {_xids(without_fault)}, without a fault of the MPS server. {cause}"
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


def _counted(health: GpuHealth, before: GpuHealth) -> GpuHealth:
    """`health` with counts: the last ones while state.json cannot be read. As 0 they would hide or repeat a fault."""
    if health.counted:
        return health
    return replace(
        before,
        reason=health.reason,
        message=health.message,
        clients=health.clients,
        absent=health.absent,
        arrived=health.arrived,
    )


def _remember(known: _Known, health: GpuHealth, now: float) -> None:
    """Remembers who was a client. While none is left, the last ones stay suspects, however long ago they ended."""
    for name in health.clients:
        # A pod that was replaced by one of the same name is known since the first of them.
        before = known.clients.get(name)
        known.clients[name] = _Client(now, before.absent if before else health.absent.get(name, -math.inf))
    if health.clients:
        known.clients = {name: client for name, client in known.clients.items() if now - client.last < SUSPECT_SECONDS}


def has_counted(before: int, now: int) -> bool:
    """Whether something happened since. A supervisor counts from 0, so a lower count is a new supervisor's own."""
    return now > before or 0 < now < before


def lost_clients(failure: str, contexts: int) -> str:
    """A sentence without a full stop. `failure`: how daemon or server ended; `contexts`: of clients that ended so."""
    many = f", {count_of(contexts, 'CUDA context')}," if contexts > 0 else ""
    return f"{failure or 'the MPS daemon ended'}; its clients{many} got error 806"


def _recent(known: _Known, now: float) -> str:
    """A sentence after a space: who may have been a client when the daemon ended; empty where nobody was."""
    recent = sorted(name for name, client in known.clients.items() if now - client.last < SUSPECT_SECONDS)
    return f" Pods with a part of the GPU: {first_names(recent, MAX_SUSPECTS_NAMED)}." if recent else ""


def _suspects(known: _Known) -> dict[str, float]:
    """When each was seen last. Pods without a slot when the Xid arrived are not suspects: most likely they wait."""
    reported_at = max((at for at, _ in known.xids), default=math.inf)
    return {name: client.last for name, client in known.clients.items() if client.absent < reported_at}


def _fault_note(health: GpuHealth, known: _Known, now: float) -> str:
    xids = [xid for _, xid in known.xids]
    logged = f" {_xids(xids)}." if xids else ""
    return f"GPU {health.uuid}: {health.last_fault}.{logged} {_cause(xids, health, known, now)}"


def _cause(xids: Collection[Xid], health: GpuHealth, known: _Known, now: float) -> str:
    """Sentences: whether the GPU itself failed; else which clients may have caused it."""
    if health.reason is DaemonReason.GPU_LOST or any(xid.number in HARDWARE_XIDS for xid in xids):
        return "The cause is the GPU, its memory or its connection, and none of its clients."
    return f"{_suspicion(_suspects(known))}{_arrivals(health, now)}"


def _arrivals(health: GpuHealth, now: float) -> str:
    """Who attached last, after a space; empty where nobody did."""
    recent = [arrival for arrival in health.arrived if 0 <= now - arrival.at <= ARRIVAL_SECONDS]
    listed = [
        f"{arrival.pod} (container {arrival.container}, PID {arrival.pid}) {now - arrival.at:.1f} s ago"
        for arrival in recent
    ]
    return f" The latest to attach: {first_names(listed, MAX_ARRIVALS_NAMED)}." if listed else ""


def _xids(xids: list[Xid]) -> str:
    numbers = ", ".join(dict.fromkeys(str(xid.number) for xid in xids))
    return f"The driver logged Xid {numbers}"


def _suspicion(seen: Mapping[str, float]) -> str:
    """The clients that were seen last come first, since not all may be named."""
    if not seen:
        return "Which process caused it is not known: log and Xid may name an innocent one."
    clients = first_names(sorted(seen, key=lambda client: (-seen[client], client)), MAX_SUSPECTS_NAMED)
    return f"The cause is one of its clients, and log and Xid may name an innocent one: {clients}."
