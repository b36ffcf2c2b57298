"""The stage of each GPU of this node, from the operator's assignments and the files on disk. Pure.

The disk is the node's memory: as long as the API server does not answer, a GPU stays with its share. Only an explicit
list of assignments changes that, and even then a GPU is given back only once no container holds a slot of it.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from gpushare.agent.reconcile.whole_gpus import WholeGpu
from gpushare.api import names
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
    """`limits`: None of a whole GPU, and where the share is unknown and nothing is on disk. `ends_clients`: the share's
    maxWait is over.

    `shows_grant`: containers see their grant as the GPU's memory. `has_classes`: they have a class. `has_queue`: they
    wait for places, as far as the share is known. `resource`: of a whole GPU, the one under which it is offered.
    `replaces_pod`: it is drained for a new MPS pod, and stays with its share.
    """

    uuid: Uuid
    share: ShareName
    stage: GpuStage
    limits: DaemonLimits | None
    ends_clients: bool = False
    shows_grant: bool = False
    has_classes: bool = False
    has_queue: bool = False
    resource: str = ""
    replaces_pod: bool = False

    @property
    def offered_as(self) -> str:
        """The resource under which the kubelet is offered the GPU or its slots."""
        return self.resource or names.slot_resource(self.share)


def plan(
    assignments: Collection[Assignment] | None,
    on_disk: Mapping[Uuid, DesiredDaemon],
    shares: Mapping[ShareName, GpuShare],
    drained: Collection[Uuid],
    whole: Mapping[Uuid, WholeGpu] = MappingProxyType({}),
) -> dict[Uuid, GpuPlan]:
    """`assignments`: None: not known. `drained`: GPUs whose free slots are withdrawn and that no container holds.

    `on_disk`, `whole`: the GPUs taken, to be shared and to be given whole. One in both is shared until it is released.
    """
    assigned = {item.uuid: item for item in assignments or ()}
    known = assignments is not None
    plans = {}
    for uuid in sorted(assigned.keys() | on_disk.keys() | whole.keys()):
        desired, given, item = on_disk.get(uuid), whole.get(uuid), assigned.get(uuid)
        if desired is not None:
            stage = GpuStage.STOP if desired.stop else _stage(desired.share, item, known=known, drained=uuid in drained)
            share = shares.get(desired.share)
            ends = item is not None and item.share == desired.share and item.terminate_clients
            shows = share.shows_grant if share else desired.shows_grant
            classes = share.counts_launches if share else desired.has_classes
            queue = share is not None and share.queue is not None
            pod = stage is GpuStage.DRAIN and item is not None and not item.draining
            limits = _limits(desired, share)
            plans[uuid] = GpuPlan(
                uuid, desired.share, stage, limits, ends, shows, classes, has_queue=queue, replaces_pod=pod
            )
        elif given is not None:
            stage = _stage(given.share, item, known=known, drained=uuid in drained)
            plans[uuid] = GpuPlan(uuid, given.share, stage, None, resource=given.resource)
        elif item is not None:
            stage = GpuStage.NOTHING_TO_DRAIN if item.draining or item.paused else GpuStage.TAKE
            plans[uuid] = _plan_to_take(item, stage, shares.get(item.share))
    return plans


def _plan_to_take(item: Assignment, stage: GpuStage, share: GpuShare | None) -> GpuPlan:
    if share is None:
        return GpuPlan(item.uuid, item.share, stage, None)
    if share.whole:
        return GpuPlan(item.uuid, item.share, stage, None, resource=share.resource)
    return GpuPlan(
        item.uuid,
        item.share,
        stage,
        daemon_limits(share),
        shows_grant=share.shows_grant,
        has_classes=share.counts_launches,
        has_queue=share.queue is not None,
    )


def _stage(share: ShareName, item: Assignment | None, *, known: bool, drained: bool) -> GpuStage:
    """The stage of a GPU that was taken for `share`."""
    if not known:
        return GpuStage.KEEP
    if item is None or item.share != share:
        return GpuStage.STOP if drained else GpuStage.LEAVE
    return GpuStage.DRAIN if item.draining or item.paused else GpuStage.SERVE


def _limits(desired: DesiredDaemon, share: GpuShare | None) -> DaemonLimits:
    """A GPU whose share is unknown, or that is being given back, keeps its limits."""
    keeps = share is None or share.whole or desired.stop
    return desired.limits if share is None or keeps else daemon_limits(share)


def daemon_limits(share: GpuShare) -> DaemonLimits:
    limits = share.process_limits
    return DaemonLimits(threads=limits.threads, memory_mib=limits.memory_mib)
