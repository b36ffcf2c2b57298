"""The roll-out of a new MPS pod template on the nodes of a share, without harm to the clients on their GPUs. Pure.

The end of an MPS pod is the end of its clients. So an outdated pod waits, and its GPUs go on taking pods, until no
container holds a slot of them; then their free slots are withdrawn. The pod is deleted once the node confirms that no
container took a slot meanwhile. Only a share's maxWait ends the waiting: free slots are withdrawn and clients ended.
Of a share with a queue it is places that count: a container that only waits for one holds up nothing, and goes on
waiting at the new pod's broker.

Guarantees: the first pod is replaced alone, later ones a tenth of the share's at a time; each must have verified its
daemons before the next is replaced; one that does not come up stops the roll-out until it comes up or the template
changes again. A pod that cannot have clients is replaced first, so that a template that failed can be taken back.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum, auto

from gpushare.api.conditions import DaemonReason
from gpushare.api.gpushare import GpuShare
from gpushare.planner.gpu_record import GpuRecord
from gpushare.planner.held_gpus import NodeGpus
from gpushare.planner.model import MpsPod, NodeView, Snapshot, Template
from gpushare.planner.selection.node_facts import RememberedNode
from gpushare.planner.waiting import deadline, since

SETTLE = timedelta(seconds=15)
"""How long a new pod runs before its daemons count as verified: reports of the old ones are at most 10 s old (the
agent's own time limit for a silent supervisor, and its pace of writing)."""
PROGRESS = timedelta(minutes=5)
"""A new pod that has not verified its daemons by then has failed; it may still come up."""
AT_ONCE_PARTS = 10
NOT_OF_THE_TEMPLATE = (
    DaemonReason.FAULTED,
    DaemonReason.GPU_LOST,
    DaemonReason.CLIENT_TABLE_FULL,
    DaemonReason.GPU_HELD_BY_FOREIGN_PROCESS,
)
"""A GPU in such a state says nothing about the MPS pod that serves it; in a large fleet there is always one."""


class Step(Enum):
    CURRENT = auto()
    COMING = auto()  # current, but its daemons are not verified yet
    FAILED = auto()  # current, and it does not come up
    WAITING = auto()  # outdated: busy, or not its turn
    PAUSED = auto()  # outdated: free slots are being withdrawn
    GOING = auto()  # outdated, and being deleted
    OUT_OF_REACH = auto()  # its node is not Ready, has no report, or its agent is silent


@dataclass(frozen=True, slots=True)
class NodeRollout:
    """A share's MPS pod on one node, with the GPUs that it serves. `why`: for COMING and FAILED."""

    node: NodeView
    pod: MpsPod | None
    records: tuple[GpuRecord, ...]
    kept: tuple[GpuRecord, ...]
    """Those of `records` that stay with the share."""
    step: Step
    outdated: bool
    since: datetime
    """The moment since which an outdated pod waits; now, of any other."""
    deadline: datetime | None
    why: str = ""

    @property
    def idle(self) -> bool:
        return not any(record.in_use for record in self.records)

    @property
    def clientless(self) -> bool:
        """No daemon of this pod serves, so no holder of a slot is its client."""
        if self.pod is not None and not self.pod.running:
            return True
        return all(
            record.daemon is None or (not record.daemon.ready and record.daemon.server_pid is None)
            for record in self.records
        )


@dataclass(frozen=True, slots=True)
class Rollout:
    """The next steps of one share's MPS pods. `paused`, `expired`: names of nodes."""

    entries: tuple[NodeRollout, ...] = ()
    paused: frozenset[str] = frozenset()
    expired: frozenset[str] = frozenset()
    replaced: tuple[MpsPod, ...] = ()
    waiting: Mapping[str, datetime] = field(default_factory=dict)
    """Nodes whose pod is outdated, and since when it waits."""

    @property
    def nodes(self) -> frozenset[str]:
        """The nodes whose assignments tell of this roll-out."""
        return self.paused | self.expired | self.waiting.keys()


def rollouts(
    snapshot: Snapshot, fleet: Mapping[str, RememberedNode], owner_of: Mapping[str, Mapping[str, str]]
) -> dict[str, Rollout]:
    """The roll-outs by share; one that is being deleted, or has no DaemonSet yet, is left out. `fleet`, `owner_of`:
    by node."""
    owned: dict[str, list[str]] = {}
    for node, given in owner_of.items():
        for share_name in set(given.values()):
            owned.setdefault(share_name, []).append(node)
    pods: dict[str, dict[str, MpsPod]] = {}
    for pod in sorted(snapshot.pods, key=_latest_last):
        pods.setdefault(pod.share, {})[pod.node] = pod
    result = {}
    for share in snapshot.shares:
        template = snapshot.templates.get(share.name)
        if template is not None and not share.deleting:
            nodes, pod_of = sorted(owned.get(share.name, ())), pods.get(share.name, {})
            entries = tuple(
                _entry(share, template, pod_of.get(name), fleet[name], owner_of[name], snapshot) for name in nodes
            )
            result[share.name] = _decide(entries, template, snapshot.now)
    return result


def again_at(rollout: Rollout) -> Iterable[datetime]:
    """Moments at which time alone may change the decision."""
    for entry in rollout.entries:
        if entry.outdated and entry.deadline is not None:
            yield entry.deadline
        elif entry.step is Step.COMING and entry.pod is not None:
            yield from (entry.pod.since + SETTLE, entry.pod.since + PROGRESS)


def _latest_last(pod: MpsPod) -> tuple[bool, datetime, str]:
    """The pod that is being deleted counts of two on a node: it may still have clients."""
    return pod.deleting, pod.since, pod.name


def _entry(
    share: GpuShare,
    template: Template,
    pod: MpsPod | None,
    facts: RememberedNode,
    given: Mapping[str, str],
    snapshot: Snapshot,
) -> NodeRollout:
    """`facts`: of a node on which the share owns a GPU. `given`: the owners of its GPUs."""
    held = facts.held.get(share.name)
    others: tuple[GpuRecord, ...] = ()
    if given is facts.holders and held is not None:
        kept = held
    else:
        kept = NodeGpus(tuple(record for record in facts.records if given.get(record.uuid) == share.name))
        others = tuple(
            record for record in facts.records if record.holder == share.name and given.get(record.uuid) != share.name
        )
    outdated = pod is not None and pod.template != template.digest
    now, begun = snapshot.now, snapshot.now
    if outdated:
        begun = min(
            since(kept_record.assignment, draining=False, now=now, jumps=snapshot.jumps) for kept_record in kept.records
        )
    step, why = _outdated_step(facts.node, pod, kept) if outdated else _current_step(facts.node, pod, kept, now)
    records = (*kept.records, *others) if others else kept.records
    end = deadline(share, begun) if outdated else None
    return NodeRollout(facts.node, pod, records, kept.records, step, outdated, begun, end, why)


def _outdated_step(node: NodeView, pod: MpsPod | None, kept: NodeGpus) -> tuple[Step, str]:
    if pod is not None and pod.deleting:
        return Step.GOING, ""
    if not node.within_reach:
        return Step.OUT_OF_REACH, ""
    paused = any(record.assignment is not None and record.assignment.paused for record in kept.records)
    return (Step.PAUSED if paused else Step.WAITING), ""


def _current_step(node: NodeView, pod: MpsPod | None, kept: NodeGpus, now: datetime) -> tuple[Step, str]:
    if not node.within_reach:
        return Step.OUT_OF_REACH, ""
    if pod is None:
        return Step.COMING, "it has no MPS pod yet"
    if pod.deleting:
        return Step.COMING, "its MPS pod was deleted and ends"
    why = _unverified(pod, kept)
    if pod.stuck or (why and now - pod.since >= PROGRESS):
        return Step.FAILED, why
    # Its assignments changed when the pod came, so a report from before that change may be of the pod before: an agent
    # may be away for longer than SETTLE.
    old_news = not node.observed and now - pod.since < PROGRESS
    if why or old_news or now - pod.since < SETTLE:
        return Step.COMING, why or "its daemons have yet to prove themselves"
    return Step.CURRENT, ""


def _unverified(pod: MpsPod, kept: NodeGpus) -> str:
    if not pod.running:
        return pod.trouble or "its container does not run yet"
    for record in () if kept.serving else kept.records:
        daemon = record.daemon
        if daemon is None:
            return f"GPU {record.uuid} is not taken yet"
        if not daemon.ready and daemon.reason not in NOT_OF_THE_TEMPLATE:
            return f"GPU {record.uuid}: {daemon.reason}: {daemon.message}"
    return ""


def _decide(entries: tuple[NodeRollout, ...], template: Template, now: datetime) -> Rollout:
    failed = any(entry.step is Step.FAILED for entry in entries)
    proceeding = [entry for entry in entries if entry.step is Step.PAUSED and _may_proceed(entry, now, failed)]
    going_on = frozenset(entry.node.name for entry in proceeding)
    active = sum(entry.step in (Step.COMING, Step.GOING) for entry in entries) + len(proceeding)
    room = _at_once(entries) - active if template.observed and not failed else 0
    turns = ((_turn(entry, now), entry) for entry in entries if entry.node.name not in going_on)
    idle_first = sorted(
        ((turn, entry) for turn, entry in turns if turn is not None),
        key=lambda turn_of: (turn_of[0], turn_of[1].node.name),
    )
    begun = [entry for _, entry in idle_first[: max(0, room)]]

    at_once = [entry for entry in begun if entry.clientless]
    paused = [*proceeding, *(entry for entry in begun if not entry.clientless)]
    paused += [entry for entry in entries if entry.step is Step.GOING]
    replaced = [*at_once, *(entry for entry in proceeding if _confirmed(entry, now))]
    return Rollout(
        entries,
        frozenset(entry.node.name for entry in paused),
        frozenset(entry.node.name for entry in paused if not entry.idle and _over(entry, now)),
        tuple(entry.pod for entry in replaced if entry.pod is not None),
        {entry.node.name: entry.since for entry in entries if entry.outdated},
    )


def _may_proceed(entry: NodeRollout, now: datetime, failed: bool) -> bool:
    """A container that took a slot before the free slots were withdrawn ends the attempt, unless maxWait is over."""
    return not failed and (entry.idle or _over(entry, now))


def _turn(entry: NodeRollout, now: datetime) -> int | None:
    """Lower comes first; None: it waits for its clients."""
    if entry.step not in (Step.WAITING, Step.PAUSED):
        return None
    if entry.clientless:
        return 0
    if entry.idle:
        return 1
    return 2 if _over(entry, now) else None


def _over(entry: NodeRollout, now: datetime) -> bool:
    return entry.deadline is not None and entry.deadline <= now


def _at_once(entries: tuple[NodeRollout, ...]) -> int:
    proven = any(entry.step is Step.CURRENT for entry in entries)
    return max(1, len(entries) // AT_ONCE_PARTS) if proven else 1


def _confirmed(entry: NodeRollout, now: datetime) -> bool:
    """Whether the node reports that nobody can take a slot any more, and all holders have ended or are being ended."""
    if not entry.node.observed or not all(_withdrawn(record) for record in entry.kept):
        return False
    return all(_left(record) or (_over(entry, now) and _ending(record)) for record in entry.records)


def _withdrawn(record: GpuRecord) -> bool:
    return record.assignment is not None and record.assignment.paused


def _ending(record: GpuRecord) -> bool:
    return record.assignment is not None and record.assignment.terminate_clients


def _left(record: GpuRecord) -> bool:
    return not record.in_use and (record.daemon is None or record.daemon.drained)
