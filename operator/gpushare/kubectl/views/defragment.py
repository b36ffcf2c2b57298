"""`kubectl gpushare defragment`: which pods to start again so that GPUs become free, or they wait no more. Pure."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from gpushare.api import names
from gpushare.api.gpunode import GpuNode
from gpushare.api.gpushare import Delivery, GpuShare, Placement
from gpushare.kube.pods import MIRROR, container_statuses, controller_of, full_name, has_ended
from gpushare.kube.resources import Object
from gpushare.kubectl.output.report import Column, Report, Row, Sentences, Short, Table, short_uuids
from gpushare.messages.wording import count_of, named
from gpushare.planner.defragment import Defragmentation, FilledGpu, LongQueue, PodMove, defragmentation, long_queues

MOVES = (
    Column("SHARE"),
    Column("POD"),
    Column("SLOTS", dropped=1, figures=True),
    Column("NODE"),
    Column("GPU"),
    Column("TO-NODE"),
    Column("TO-GPU"),
)
KEPT = (Column("SHARE"), Column("NODE"), Column("GPU"), Column("HELD", figures=True), Column("STAYS", text=True))

MOST_NAMED = 4
Slots = Mapping[str, Mapping[str, int]]
"""GPU's UUID -> pod -> slots."""


def defragment(
    shares: Sequence[GpuShare], gpu_nodes: Sequence[GpuNode], nodes: Iterable[Object], pods: Iterable[Object]
) -> Report:
    """`nodes`: empty where they may not be read; cordoned ones get no pod then either, but the plan does not know."""
    cordoned = {node["metadata"]["name"] for node in nodes if (node.get("spec") or {}).get("unschedulable")}
    living = [pod for pod in pods if not has_ended(pod)]
    slots = _slots(living)
    fixed = dict(_fixed(living, slots))
    slotted = [share for share in shares if share.spec.delivery is Delivery.DEVICE_PLUGIN and not share.whole]
    gpus = {share.name: list(_gpus(share, gpu_nodes, slots, cordoned)) for share in slotted}
    plans = {name: defragmentation(filled, fixed) for name, filled in gpus.items()}
    queues = {name: long_queues(filled) for name, filled in gpus.items()}
    short = short_uuids(gpu.uuid for node in gpu_nodes for gpu in node.status.gpus)
    moves = [(name, move) for name, plan in plans.items() for move in plan.moves]
    return Report(
        {"shares": [_data(name, plan, queues[name]) for name, plan in plans.items()]},
        [
            Table(MOVES, [_row(name, move, short) for name, move in moves], "no GPU would become free"),
            Table(KEPT, [row for name, plan in plans.items() for row in _kept(name, plan, gpu_nodes, short)]),
            Sentences([("", line) for line in (*_queue_sentences(queues, short), *_sentences(shares, plans))]),
        ],
        names=[f"pod/{move.pod.partition('/')[2]}" for _, move in moves],
    )


def _slots(pods: Iterable[Object]) -> Slots:
    """The slots that kubelets write into the pods' status."""
    slots: dict[str, Counter[str]] = defaultdict(Counter)
    for pod in pods:
        for status in container_statuses(pod):
            for allocated in status.get("allocatedResourcesStatus") or ():
                if names.share_of_resource(str(allocated.get("name"))):
                    for resource in allocated.get("resources") or ():
                        slots[str(resource.get("resourceID")).partition("::")[0]][full_name(pod)] += 1
    return slots


def _fixed(pods: Iterable[Object], slots: Slots) -> Iterator[tuple[str, str]]:
    """Pods that cannot be started again elsewhere, and why."""
    gpus = Counter(pod for held in slots.values() for pod in held)
    for pod in pods:
        name, (kind, _) = full_name(pod), controller_of(pod)
        if gpus[name] > 1:
            yield name, f"holds slots of {count_of(gpus[name], 'GPU')}"
        elif kind == "DaemonSet":
            yield name, "belongs to a DaemonSet, which has one on each node"
        elif kind == "Job":
            yield name, "belongs to a Job, which would begin again"
        elif kind == "Node" or MIRROR in (pod["metadata"].get("annotations") or {}):
            yield name, "belongs to its node"
        elif not kind:
            yield name, "has no controller, so that nothing starts it again"
        elif pod["metadata"].get("deletionTimestamp"):
            yield name, "is being deleted"


def _gpus(share: GpuShare, nodes: Iterable[GpuNode], slots: Slots, cordoned: set[str]) -> Iterator[FilledGpu]:
    per_gpu = share.slots_per_gpu
    for node in nodes:
        owned = {item.uuid for item in node.spec.assignments or () if item.share == share.name}
        held = {item.uuid: item for item in node.status.holders if item.share == share.name}
        for daemon in node.status.daemons:
            if daemon.share != share.name:
                continue
            holder = held.get(daemon.uuid)
            taken = len(holder.slots) if holder else 0
            takes_clients = daemon.ready and daemon.uuid in owned and not node.silence and node.name not in cordoned
            known = _holding(slots.get(daemon.uuid, {}), holder.pods if holder else (), taken)
            free = max(per_gpu - taken, 0)
            waiting, free_places = _places(node, daemon.uuid) if share.queue is not None else ([], free)
            room = min(free, free_places) if takes_clients else 0
            yield FilledGpu(node.name, daemon.uuid, taken, room, known, waiting)


def _holding(slots: Mapping[str, int], listed: Sequence[str], held: int) -> Mapping[str, int]:
    """The pods, where no kubelet says who has which slot, that the agent lists, if each has one."""
    return slots if slots or len(listed) != held else dict.fromkeys(listed, 1)


def _places(node: GpuNode, uuid: str) -> tuple[list[str], int]:
    """The pods that wait and get none of the places that are free now, and how many of those nobody waits for."""
    places = next((item for item in node.status.places if item.uuid == uuid), None)
    if places is None:
        return [], 0
    free = max(places.limit - places.used, 0)
    waiting = [client.rpartition("/")[0] for client in places.queue[free:]]
    return list(dict.fromkeys(waiting)), max(free - places.waiting, 0)


def _row(share: str, move: PodMove, short: Mapping[str, Short]) -> Row:
    source, target = move.source, move.target
    where = (source.node, short[source.uuid], target.node, short[target.uuid])
    return (share, move.pod, str(move.slots), *where)


def _kept(share: str, plan: Defragmentation, nodes: Iterable[GpuNode], short: Mapping[str, Short]) -> Iterator[Row]:
    for node in nodes:
        for holder in node.status.holders:
            if holder.share == share and holder.uuid in plan.kept:
                yield share, node.name, short[holder.uuid], str(len(holder.slots)), plan.kept[holder.uuid]


def _data(share: str, plan: Defragmentation, queues: Iterable[LongQueue]) -> dict[str, Any]:
    return {
        "share": share,
        "freed": [{"node": gpu.node, "uuid": gpu.uuid} for gpu in plan.freed],
        "moves": [
            {
                "pod": move.pod,
                "slots": move.slots,
                "from": {"node": move.source.node, "uuid": move.source.uuid},
                "to": {"node": move.target.node, "uuid": move.target.uuid},
            }
            for move in plan.moves
        ],
        "kept": [{"uuid": uuid, "why": why} for uuid, why in plan.kept.items()],
        "queues": [
            {
                "node": queue.gpu.node,
                "uuid": queue.gpu.uuid,
                "pods": list(queue.pods),
                "beside": [{"uuid": gpu.uuid, "free": gpu.free} for gpu in queue.beside],
            }
            for queue in queues
        ],
    }


def _queue_sentences(queues: Mapping[str, Iterable[LongQueue]], short: Mapping[str, Short]) -> Iterator[str]:
    for share, queue in ((share, queue) for share, of_share in queues.items() for queue in of_share):
        waiting, free = len(queue.gpu.waiting), sum(gpu.free for gpu in queue.beside)
        beside = " and ".join(short[gpu.uuid] for gpu in queue.beside)
        yield (
            f"Share {share}: {count_of(waiting, 'pod')} {'waits' if waiting == 1 else 'wait'} for a place on "
            f"{short[queue.gpu.uuid]} of node {queue.gpu.node}, and {beside} beside it "
            f"{'has' if len(queue.beside) == 1 else 'have'} {count_of(free, 'free place')}: start "
            f"{named('pod', queue.pods, MOST_NAMED)} again, and {'it gets' if len(queue.pods) == 1 else 'they get'} "
            "one at once."
        )


def _sentences(shares: Iterable[GpuShare], plans: Mapping[str, Defragmentation]) -> Iterator[str]:
    for share in shares:
        plan = plans.get(share.name)
        if plan is None:
            why = "it gives whole GPUs" if share.whole else "the scheduler places its claims"
            yield f"Share {share.name}: not looked at, because {why}."
            continue
        in_use, freed = len(plan.freed) + len(plan.kept), len(plan.freed)
        moved = f": delete {count_of(len(plan.moves), 'pod')}, one at a time" if plan.moves else ""
        yield f"Share {share.name}: {count_of(in_use, 'GPU')} with clients, {freed} of them could be free{moved}."
        if plan.moves and share.clients.placement is not Placement.PACK:
            yield f"Set spec.clients.placement of {share.name} to Pack first, or its pods go where most slots are free."
    if any(plan.moves for plan in plans.values()):
        yield "Nothing was changed. A pod that is started again gets the node that the scheduler chooses."
