"""Replacing the MPS pods of a share that were made from an older template, without harm to who is on their GPUs. Pure.

The end of an MPS pod is the end of its clients. So an outdated one waits, and its GPUs go on taking pods, until no
container holds a slot of them; then their free slots are withdrawn, and once the node confirms that nobody came in
between, the pod is deleted. Only a share's maxWait sets an end to the waiting: free slots are withdrawn, clients ended.

Guarantees: the first pod is replaced alone, later ones a tenth of the share's at a time; each must have verified its
daemons before the next is touched; one that does not come up stops the roll-out, until it comes up or another template
is there. A pod on which no client can be is replaced first, so that a template that failed can be taken back.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum, auto

from gpushare.api.conditions import DaemonReason
from gpushare.api.gpushare import GpuShare
from gpushare.fleet.gpu_record import GpuRecord
from gpushare.fleet.model import MpsPod, NodeView, Snapshot, Template
from gpushare.fleet.waiting import deadline, since

SETTLE = timedelta(seconds=15)
"""So long a new pod runs before its daemons count as verified: news of the old ones is at most 10 s old (the agent's
own time limit for a silent supervisor, and its pace of writing)."""
PROGRESS = timedelta(minutes=5)
"""A new pod that has not verified its daemons by then has failed; it may still come up."""
AT_ONCE_PARTS = 10
NOT_OF_THE_TEMPLATE = (
    DaemonReason.FAULTED,
    DaemonReason.GPU_LOST,
    DaemonReason.CLIENT_TABLE_FULL,
    DaemonReason.GPU_HELD_BY_FOREIGN_PROCESS,
)
"""A GPU in such a state says nothing of the MPS pod that serves it; in a large fleet there is always one."""


class Step(Enum):
    CURRENT = auto()
    COMING = auto()  # current, but its daemons are not verified yet
    FAILED = auto()  # current, and it does not come up
    WAITING = auto()  # outdated: busy, or not its turn
    PAUSED = auto()  # outdated: free slots are being withdrawn
    GOING = auto()  # outdated, and being deleted
    OUT_OF_REACH = auto()  # its node is not Ready, or tells nothing


@dataclass(frozen=True, slots=True)
class NodeRollout:
    """A share's MPS pod on one node, with the GPUs that it serves. `why`: for COMING and FAILED."""

    node: NodeView
    pod: MpsPod | None
    places: tuple[GpuRecord, ...]
    kept: tuple[GpuRecord, ...]
    """Of `places`, those that stay with the share."""
    step: Step
    outdated: bool
    since: datetime
    """Since when an outdated pod waits."""
    deadline: datetime | None
    why: str = ""

    @property
    def idle(self) -> bool:
        return not any(place.slots for place in self.places)

    @property
    def clientless(self) -> bool:
        """Whoever holds a slot is not on a daemon of this pod: none serves."""
        if self.pod is not None and not self.pod.running:
            return True
        return all(
            place.daemon is None or (not place.daemon.ready and place.daemon.server_pid is None)
            for place in self.places
        )


@dataclass(frozen=True, slots=True)
class Rollout:
    """What one share's MPS pods are to do. `paused`, `expired`: nodes."""

    seats: tuple[NodeRollout, ...] = ()
    paused: frozenset[str] = frozenset()
    expired: frozenset[str] = frozenset()
    replaced: tuple[MpsPod, ...] = ()

    @property
    def waiting(self) -> Mapping[str, datetime]:
        """Nodes whose pod is outdated, and since when it waits."""
        return {seat.node.name: seat.since for seat in self.seats if seat.outdated}


def rollouts(
    snapshot: Snapshot, fleet: Mapping[str, list[GpuRecord]], given: Mapping[tuple[str, str], str]
) -> dict[str, Rollout]:
    """By share; one that is being deleted, or has no DaemonSet yet, is left out."""
    result = {}
    for share in snapshot.shares:
        template = snapshot.templates.get(share.name)
        if template is not None and not share.deleting:
            seats = tuple(_seats(share, template, snapshot, fleet, given))
            result[share.name] = _decide(seats, template, snapshot.now)
    return result


def again_at(rollout: Rollout) -> Iterable[datetime]:
    """Moments at which time alone may change the decision."""
    for seat in rollout.seats:
        if seat.outdated and seat.deadline is not None:
            yield seat.deadline
        elif seat.step is Step.COMING and seat.pod is not None:
            yield from (seat.pod.since + SETTLE, seat.pod.since + PROGRESS)


def _seats(
    share: GpuShare,
    template: Template,
    snapshot: Snapshot,
    fleet: Mapping[str, list[GpuRecord]],
    given: Mapping[tuple[str, str], str],
) -> Iterable[NodeRollout]:
    pods = {pod.node: pod for pod in sorted(snapshot.pods, key=_latest_last) if pod.share == share.name}
    for node in sorted(snapshot.nodes, key=lambda node: node.name):
        kept = tuple(place for place in fleet[node.name] if given.get(place.key) == share.name)
        if kept:
            others = (place for place in fleet[node.name] if place.holder == share.name and place not in kept)
            yield _seat(share, template, node, pods.get(node.name), kept, tuple(others), snapshot.now)


def _latest_last(pod: MpsPod) -> tuple[bool, datetime, str]:
    """Of two pods on a node the one that ends counts: it may still have clients."""
    return pod.deleting, pod.since, pod.name


def _seat(
    share: GpuShare,
    template: Template,
    node: NodeView,
    pod: MpsPod | None,
    kept: tuple[GpuRecord, ...],
    others: tuple[GpuRecord, ...],
    now: datetime,
) -> NodeRollout:
    outdated = pod is not None and pod.template != template.digest
    begun = min(since(place.assignment, draining=False, now=now) for place in kept)
    step, why = _outdated_step(node, pod, kept) if outdated else _current_step(node, pod, kept, now)
    return NodeRollout(node, pod, (*kept, *others), kept, step, outdated, begun, deadline(share, begun), why)


def _outdated_step(node: NodeView, pod: MpsPod | None, kept: tuple[GpuRecord, ...]) -> tuple[Step, str]:
    if pod is not None and pod.deleting:
        return Step.GOING, ""
    if not node.ready or not node.has_news:
        return Step.OUT_OF_REACH, ""
    paused = any(place.assignment is not None and place.assignment.paused for place in kept)
    return (Step.PAUSED if paused else Step.WAITING), ""


def _current_step(node: NodeView, pod: MpsPod | None, kept: tuple[GpuRecord, ...], now: datetime) -> tuple[Step, str]:
    if not node.ready or not node.has_news:
        return Step.OUT_OF_REACH, ""
    if pod is None:
        return Step.COMING, "it has no MPS pod yet"
    if pod.deleting:
        return Step.COMING, "its MPS pod was deleted and ends"
    why = _unverified(pod, kept)
    if pod.stuck or (why and now - pod.since >= PROGRESS):
        return Step.FAILED, why
    if why or now - pod.since < SETTLE:
        return Step.COMING, why or "its daemons have yet to prove themselves"
    return Step.CURRENT, ""


def _unverified(pod: MpsPod, kept: tuple[GpuRecord, ...]) -> str:
    if not pod.running:
        return pod.trouble or "its container does not run yet"
    for place in kept:
        told = place.daemon
        if told is None:
            return f"GPU {place.uuid} is not taken yet"
        if not told.ready and told.reason not in NOT_OF_THE_TEMPLATE:
            return f"GPU {place.uuid}: {told.reason}: {told.message}"
    return ""


def _decide(seats: tuple[NodeRollout, ...], template: Template, now: datetime) -> Rollout:
    failed = any(seat.step is Step.FAILED for seat in seats)
    proceeding = [seat for seat in seats if seat.step is Step.PAUSED and _may_proceed(seat, now, failed)]
    active = sum(seat.step in (Step.COMING, Step.GOING) for seat in seats) + len(proceeding)
    room = _at_once(seats) - active if template.observed and not failed else 0
    idle_first = sorted((turn, seat.node.name, seat) for seat in seats if (turn := _turn(seat, now)) is not None)
    begun = [seat for _, _, seat in idle_first if seat not in proceeding][: max(0, room)]

    at_once = [seat for seat in begun if seat.clientless]
    paused = [seat for seat in seats if seat in proceeding or (seat in begun and seat not in at_once)]
    paused += [seat for seat in seats if seat.step is Step.GOING]
    replaced = [*at_once, *(seat for seat in proceeding if _confirmed(seat, now))]
    return Rollout(
        seats,
        frozenset(seat.node.name for seat in paused),
        frozenset(seat.node.name for seat in paused if not seat.idle and _over(seat, now)),
        tuple(seat.pod for seat in replaced if seat.pod is not None),
    )


def _may_proceed(seat: NodeRollout, now: datetime, failed: bool) -> bool:
    """A pod that came in before the free slots were withdrawn ends the attempt, unless maxWait is over."""
    return not failed and (seat.idle or _over(seat, now))


def _turn(seat: NodeRollout, now: datetime) -> int | None:
    """Lower comes first; None: it waits for its clients."""
    if seat.step not in (Step.WAITING, Step.PAUSED):
        return None
    if seat.clientless:
        return 0
    if seat.idle:
        return 1
    return 2 if _over(seat, now) else None


def _over(seat: NodeRollout, now: datetime) -> bool:
    return seat.deadline is not None and seat.deadline <= now


def _at_once(seats: tuple[NodeRollout, ...]) -> int:
    proven = any(seat.step is Step.CURRENT for seat in seats)
    return max(1, len(seats) // AT_ONCE_PARTS) if proven else 1


def _confirmed(seat: NodeRollout, now: datetime) -> bool:
    """Its node tells that no container can get in any more, and none holds a slot or all are being ended."""
    if not seat.node.observed or not all(_withdrawn(place) for place in seat.kept):
        return False
    return all(_left(place) or (_over(seat, now) and _ending(place)) for place in seat.places)


def _withdrawn(place: GpuRecord) -> bool:
    return place.assignment is not None and place.assignment.paused


def _ending(place: GpuRecord) -> bool:
    return place.assignment is not None and place.assignment.end_clients


def _left(place: GpuRecord) -> bool:
    return not place.slots and (place.daemon is None or place.daemon.drained)
