"""The stage of each GPU of this node, from the operator's assignments and the files on disk. Pure.

The disk is the node's memory: as long as the API server does not answer, a GPU stays with its share. Only an explicit
list of assignments changes that, and even then a GPU is given back only once no container holds a slot of it.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum

from gpushare.api.gpunode import Assignment, ShareName, Uuid
from gpushare.api.gpushare import GpuShare
from gpushare.mps.wire import DaemonLimits, DesiredDaemon


class GpuStage(StrEnum):
    TAKE = "Take"  # assigned, nothing on disk yet
    SERVE = "Serve"
    KEEP = "Keep"  # assignments not known: daemon and held slots go on, no free slot is offered
    DRAIN = "Drain"  # the operator takes the GPU away or replaces its MPS pod
    LEAVE = "Leave"  # the assignment is gone: drain, then stop
    STOP = "Stop"  # daemon.json says stop; ends with the directory's removal
    NOTHING_TO_DRAIN = "NothingToDrain"  # the operator drains it, but it was never taken


@dataclass(frozen=True, slots=True)
class GpuPlan:
    """`limits`: None where the share is unknown and nothing is on disk. `ends_clients`: the share's maxWait is over.

    `shows_grant`: containers see their grant as the GPU's memory.
    """

    uuid: Uuid
    share: ShareName
    stage: GpuStage
    limits: DaemonLimits | None
    ends_clients: bool = False
    shows_grant: bool = False


def plan(
    assignments: Collection[Assignment] | None,
    on_disk: Mapping[Uuid, DesiredDaemon],
    shares: Mapping[ShareName, GpuShare],
    drained: Collection[Uuid],
) -> dict[Uuid, GpuPlan]:
    """`assignments`: None: not known. `drained`: GPUs whose free slots are withdrawn and that no container holds."""
    assigned = {item.uuid: item for item in assignments or ()}
    plans = {}
    for uuid in sorted(assigned.keys() | on_disk.keys()):
        desired, item = on_disk.get(uuid), assigned.get(uuid)
        if desired is not None:
            stage = _stage_on_disk(desired, item, known=assignments is not None, drained=uuid in drained)
            share = shares.get(desired.share)
            ends = item is not None and item.share == desired.share and item.terminate_clients
            shows = share.shows_grant if share else desired.shows_grant
            plans[uuid] = GpuPlan(uuid, desired.share, stage, _limits(desired, share), ends, shows)
        elif item is not None:
            stage = GpuStage.NOTHING_TO_DRAIN if item.draining or item.paused else GpuStage.TAKE
            share = shares.get(item.share)
            limits, shows = (daemon_limits(share), share.shows_grant) if share else (None, False)
            plans[uuid] = GpuPlan(uuid, item.share, stage, limits, shows_grant=shows)
    return plans


def _stage_on_disk(desired: DesiredDaemon, item: Assignment | None, *, known: bool, drained: bool) -> GpuStage:
    if desired.stop:
        return GpuStage.STOP
    if not known:
        return GpuStage.KEEP
    if item is None or item.share != desired.share:
        return GpuStage.STOP if drained else GpuStage.LEAVE
    return GpuStage.DRAIN if item.draining or item.paused else GpuStage.SERVE


def _limits(desired: DesiredDaemon, share: GpuShare | None) -> DaemonLimits:
    """A GPU whose share is unknown, or that is being given back, keeps its limits."""
    return desired.limits if share is None or desired.stop else daemon_limits(share)


def daemon_limits(share: GpuShare) -> DaemonLimits:
    limits = share.process_limits
    return DaemonLimits(threads=limits.threads, memory_mib=limits.memory_mib, priority=limits.priority)
