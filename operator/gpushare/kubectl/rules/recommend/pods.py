"""Pods that belong elsewhere: on a GPU of their own, or nowhere, since they hold a part and use none. Pure."""

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime

from gpushare.api.gpunode import GpuNode
from gpushare.api.gpushare import CONTEXT_RESERVE_MIB
from gpushare.api.quantity import format_mib
from gpushare.api.timestamps import parse_timestamp
from gpushare.kubectl.rules.recommend.advice import Advice, AdviceKind
from gpushare.kubectl.rules.recommend.history import ContainerPast, Observed, ShareHistory
from gpushare.kubectl.rules.recommend.memory import enough_memory
from gpushare.kubectl.rules.recommend.sureness import (
    DAY,
    Sureness,
    at_most_medium,
    duration,
    length,
    sureness_of,
    too_short,
)
from gpushare.kubectl.rules.trial.apply import memory_for
from gpushare.messages.wording import count_of

LEAST_FAULTS = 2
BY_CHANCE = 0.01
"""A workload that was there at every fault is suspected where so long a stay meets them all with less probability."""


def own_gpu(history: ShareHistory) -> list[Advice]:
    seen = history.clients
    if seen is None or too_short(history, seen, "pods"):
        return []
    return [*_large(history, seen), *_faulting(history, seen)]


def _large(history: ShareHistory, seen: Observed) -> list[Advice]:
    """Containers beside which no client of the share finds memory, on GPUs that are meant for several."""
    share = history.share
    if share.clients.per_gpu == 1:
        return []
    memory_of = {gpu.uuid: gpu.memory_mib for gpu in history.gpus}
    beside = min(share.memory_default_mib, enough_memory(history) or share.memory_default_mib)
    largest: dict[tuple[str, str], ContainerPast] = {}
    for past in sorted(history.containers, key=lambda past: past.memory_most):
        usable = memory_of.get(past.uuid, 0) - CONTEXT_RESERVE_MIB
        if usable > 0 and usable - memory_for(past.memory_most) < beside:
            largest[past.workload, past.container] = past
    return [
        Advice(
            AdviceKind.OWN_GPU,
            share.name,
            workload,
            f"a slot of {share.name}",
            "a whole GPU",
            f"its container {container} was seen with {format_mib(past.memory_most)} of the GPU's "
            f"{format_mib(memory_of[past.uuid])} in {count_of(past.samples, 'sample')}: beside that and a tenth more "
            f"there is no room for a client of {format_mib(beside)}",
            sureness_of(history, seen),
            {
                "mostUsedMiB": past.memory_most,
                "gpuMiB": memory_of[past.uuid],
                "samples": past.samples,
                "since": seen.since,
            },
        )
        for (workload, container), past in largest.items()
    ]


def _faulting(history: ShareHistory, seen: Observed) -> list[Advice]:
    """The one workload that was on the GPU at every fault and is there so seldom that this is no chance.

    One that is there always was at every fault, too, and nothing follows from that.
    """
    faults = history.faults
    neighbours = sum(len(fault.present) > 1 for fault in faults)
    if len(faults) < LEAST_FAULTS or not neighbours:
        return []
    there = Counter(workload for fault in faults for workload in fault.present)
    chances = {
        workload_there: stay(history, workload_there) ** len(faults)
        for workload_there, times in there.items()
        if times == len(faults)
    }
    suspects = [workload_there for workload_there, chance in chances.items() if chance <= BY_CHANCE]
    if len(suspects) != 1:
        return []
    (suspect,) = suspects
    part = stay(history, suspect)
    return [
        Advice(
            AdviceKind.OWN_GPU,
            history.share.name,
            suspect,
            f"a slot of {history.share.name}",
            "a whole GPU",
            f"it was on the GPU at all {len(faults)} faults of the share in {length(history, seen)}, {neighbours} of "
            f"them with neighbours, though it is there {part:.1%} of the time: chance alone does that with a "
            f"probability of {chances[suspect]:.1g}",
            at_most_medium(sureness_of(history, seen)),
            {
                "faults": len(faults),
                "withNeighbours": neighbours,
                "presentPercent": round(part * 100, 1),
                "samples": seen.samples,
                "since": seen.since,
            },
        )
    ]


def stay(history: ShareHistory, workload: str) -> float:
    """The part of the time, of 1 and rather too large, in which the workload was on the GPUs that had faults."""
    uuids = {fault.uuid for fault in history.faults}
    samples = sum(gpu.samples for gpu in history.gpus if gpu.uuid in uuids)
    # One sample more for each: it may have come after one and gone before the next.
    there = sum(
        container.samples + 1
        for container in history.containers
        if container.uuid in uuids and container.workload == workload
    )
    return min(1.0, there / samples) if samples else 1.0


def unused_parts(nodes: Iterable[GpuNode], shares: Sequence[str], now: datetime) -> list[Advice]:
    """Containers that have held a part of a GPU for a day and more without a client, by their agents' own record."""
    parts = [
        (now - parse_timestamp(part.unused_since), part)
        for node in nodes
        if not node.silence
        for part in node.status.unused
        if part.share in shares
    ]
    lasting = sorted(
        (aged_part for aged_part in parts if aged_part[0].total_seconds() >= DAY), key=lambda aged_part: -aged_part[0]
    )
    return [
        Advice(
            AdviceKind.UNUSED,
            part.share,
            f"{part.namespace}/{part.pod}",
            f"a slot of {part.share}",
            "end it, or scale its controller down",
            f"its container {part.container} has had no client on its GPU for {duration(since.total_seconds())}, and "
            "keeps another one out",
            Sureness.HIGH,
            {"unusedSeconds": int(since.total_seconds()), "unusedSince": part.unused_since},
        )
        for since, part in lasting
    ]
