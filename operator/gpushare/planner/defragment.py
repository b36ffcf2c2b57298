"""Which GPUs of a share would be free if some of its pods were started again elsewhere, and which pods wait for a place
while another GPU of their node has a free one. Nothing is moved here. Pure.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpushare.messages.wording import are, count_of


@dataclass(frozen=True, slots=True)
class FilledGpu:
    """`free`: slots that a new container could get now, and compute: none where the GPU, its node or its agent is not
    ready, and no more than places that nobody has or waits for.

    `held`: slots that containers hold; `pods`: name -> slots, of those whose slots are known. `waiting`: pods that wait
    for a place, the next one first.
    """

    node: str
    uuid: str
    held: int
    free: int
    pods: Mapping[str, int] = field(default_factory=dict)
    waiting: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class PodMove:
    """A pod with all of its slots, from one GPU to another."""

    pod: str
    slots: int
    source: FilledGpu
    target: FilledGpu


@dataclass(frozen=True, slots=True)
class Defragmentation:
    """`freed`: GPUs that lose all their clients by `moves`. `kept`: why each other GPU with clients keeps them."""

    freed: tuple[FilledGpu, ...]
    moves: tuple[PodMove, ...]
    kept: Mapping[str, str]
    """UUID -> a sentence."""


def defragmentation(gpus: Iterable[FilledGpu], fixed: Mapping[str, str]) -> Defragmentation:
    """The GPUs with fewest clients are emptied first, into those with fewest free slots that have enough.

    GPUs of the pod's own node come first, because a scheduler has then nothing to decide. There only those that `Pack`
    prefers to the GPU that is emptied: fuller ones, or as full with a lower UUID. `fixed`: pod -> why it cannot
    be started again elsewhere. A GPU that gets a pod is not emptied, and no pod moves to a GPU without clients.
    """
    in_use = sorted((gpu for gpu in gpus if gpu.held), key=lambda gpu: (-gpu.held, gpu.uuid), reverse=True)
    room = {gpu.uuid: gpu.free for gpu in in_use}
    freed: list[FilledGpu] = []
    moves: list[PodMove] = []
    kept: dict[str, str] = {}
    filled: set[str] = set()
    for place, gpu in enumerate(in_use):
        why = "pods of other GPUs would come here" if gpu.uuid in filled else _stays(gpu, fixed)
        fuller = in_use[place + 1 :]
        targets = [other for other in in_use if other in fuller or (other.node != gpu.node and other not in freed)]
        moved = [] if why else _moved(gpu, targets, room)
        if moved is None:
            why = "no fuller GPU of its node, and none with clients of another, has room for its pods"
        if why:
            kept[gpu.uuid] = why
            continue
        for move in moved or ():
            room[move.target.uuid] -= move.slots
            filled.add(move.target.uuid)
        freed.append(gpu)
        moves += moved or ()
    return Defragmentation(tuple(freed), tuple(moves), kept)


def _stays(gpu: FilledGpu, fixed: Mapping[str, str]) -> str:
    """Why its pods cannot go; empty if they can."""
    unknown = gpu.held - sum(gpu.pods.values())
    if unknown > 0:
        return f"who holds {count_of(unknown, 'slot')} of it {are(unknown)} not known"
    return next((f"pod {pod} {fixed[pod]}" for pod in sorted(gpu.pods) if pod in fixed), "")


def _moved(gpu: FilledGpu, targets: Sequence[FilledGpu], room: Mapping[str, int]) -> list[PodMove] | None:
    """The moves of the GPU's pods, the largest first, each to where it leaves least room; None: one finds none."""
    left = dict(room)
    moves = []
    for pod, slots in sorted(gpu.pods.items(), key=lambda item: (-item[1], item[0])):
        fits = [target for target in targets if left[target.uuid] >= slots]
        if not fits:
            return None
        target = min(
            fits,
            key=lambda candidate: (candidate.node != gpu.node, left[candidate.uuid], candidate.node, candidate.uuid),
        )
        left[target.uuid] -= slots
        moves.append(PodMove(pod, slots, gpu, target))
    return moves


@dataclass(frozen=True, slots=True)
class LongQueue:
    """`pods`: of those that wait for a place on `gpu`, who would get one of `beside` at once, the last of the queue
    first. `beside`: GPUs of the same node.
    """

    gpu: FilledGpu
    beside: tuple[FilledGpu, ...]
    pods: tuple[str, ...]


def long_queues(gpus: Sequence[FilledGpu]) -> list[LongQueue]:
    """The GPUs with a queue beside free places, the longest queue first; no free place is counted for two pods.

    The agent sends each new container to a free place, so this comes about where holders have ended since.
    """
    room = {gpu.uuid: gpu.free for gpu in gpus}
    result = []
    for gpu in sorted((gpu for gpu in gpus if gpu.waiting), key=lambda gpu: (-len(gpu.waiting), gpu.uuid)):
        beside, pods = [], gpu.waiting[::-1]
        left = len(pods)
        for other in (other for other in gpus if other.node == gpu.node and other.uuid != gpu.uuid):
            if taken := min(room[other.uuid], left):
                room[other.uuid] -= taken
                left -= taken
                beside.append(other)
        if beside:
            result.append(LongQueue(gpu, tuple(beside), tuple(pods[: len(pods) - left])))
    return result
