"""What each GPU of this node is to do: the operator's assignments against what is on disk. Pure.

The disk is the node's memory: without news from the API a GPU stays what it is. Only an explicit list of assignments
changes that, and even then a GPU is given up only once no container holds a slot of it.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum

from gpushare.api.gpunode import Assignment, Limits, ShareName, Uuid
from gpushare.api.gpushare import GpuShare
from gpushare.mps.wire import DaemonWanted


class GpuStage(StrEnum):
    TAKE = "Take"  # assigned, nothing on disk yet
    SERVE = "Serve"
    KEEP = "Keep"  # no news from the API: daemon and held slots go on, no free slot is offered
    DRAIN = "Drain"  # the operator asked for it, be it to take the GPU away or to replace its MPS pod
    LEAVE = "Leave"  # the assignment is gone: drain, then stop
    STOP = "Stop"  # told to stop; ends with the directory's removal
    NOTHING_TO_DRAIN = "NothingToDrain"  # to be drained, but never taken


@dataclass(frozen=True, slots=True)
class GpuPlan:
    """`limits`: None where the share is unknown and nothing is on disk. `ends_clients`: the share's maxWait is over."""

    uuid: Uuid
    share: ShareName
    stage: GpuStage
    limits: Limits | None
    ends_clients: bool = False


def plan(
    assignments: Collection[Assignment] | None,
    on_disk: Mapping[Uuid, DaemonWanted],
    shares: Mapping[ShareName, GpuShare],
    drained: Collection[Uuid],
) -> dict[Uuid, GpuPlan]:
    """`assignments`: None means no news. `drained`: GPUs whose free slots are withdrawn and that no container holds."""
    assigned = {item.uuid: item for item in assignments or ()}
    plans = {}
    for uuid in sorted(assigned.keys() | on_disk.keys()):
        wanted, item = on_disk.get(uuid), assigned.get(uuid)
        if wanted is not None:
            stage = _stage_on_disk(wanted, item, known=assignments is not None, drained=uuid in drained)
            limits = _limits(wanted, shares.get(wanted.share))
            ends = item is not None and item.share == wanted.share and item.end_clients
            plans[uuid] = GpuPlan(uuid, wanted.share, stage, limits, ends)
        elif item is not None:
            stage = GpuStage.NOTHING_TO_DRAIN if item.draining or item.paused else GpuStage.TAKE
            share = shares.get(item.share)
            plans[uuid] = GpuPlan(uuid, item.share, stage, share.process_limits if share else None)
    return plans


def _stage_on_disk(wanted: DaemonWanted, item: Assignment | None, *, known: bool, drained: bool) -> GpuStage:
    if wanted.stop:
        return GpuStage.STOP
    if not known:
        return GpuStage.KEEP
    if item is None or item.share != wanted.share:
        return GpuStage.STOP if drained else GpuStage.LEAVE
    return GpuStage.DRAIN if item.draining or item.paused else GpuStage.SERVE


def _limits(wanted: DaemonWanted, share: GpuShare | None) -> Limits:
    """A share that vanished, or that is being wound up, keeps the limits that are in force."""
    return wanted.limits if share is None or wanted.stop else share.process_limits
