"""One tick's decision over the whole node. Pure: a picture in, what each GPU is, offers and may do out.

When a GPU is idle for good: free slots withdrawn, confirmed by the kubelet, and no slot held. Pure.

The order proves it. Free slots are withdrawn; then a reading of the kubelet begins that asks first what can be
allocated and then what is held. Where the first names no slot of the GPU, none can be allocated any more, so the second
is final. An allocation that this reading may have missed is promised, and a promised slot is never idle.

Of claims the operator knows which are allocated, and waits for those; here it counts what is prepared, and that the
scheduler has had the time to see that the GPU is closed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpushare.agent.gpus.inventory import GpuView
from gpushare.agent.kubelet.holdings import Holdings, KubeletView, ShareGpu, Slots, united
from gpushare.agent.reconcile.assignments import GpuPlan, GpuStage, plan
from gpushare.agent.reconcile.daemon_files import DaemonFiles
from gpushare.agent.reconcile.readiness import Readiness, ReadinessInput, judge, with_room
from gpushare.agent.reconcile.slots import GpuOffer, offer_of
from gpushare.api.conditions import DaemonReason
from gpushare.api.gpunode import Assignment, ComputeModes, ShareName, Uuid
from gpushare.api.gpushare import GpuShare

SCHEDULER_SECONDS = 5.0
"""A scheduler that saw the GPU open until it was closed has written its allocation by then, or will fail to."""


def idle(share: ShareName, uuid: Uuid, withdrawn_at: float | None, view: KubeletView | None, promised: Slots) -> bool:
    """`withdrawn_at`: since when no free slot is offered, on the clock of `view.started`; None when one still is."""
    if withdrawn_at is None or view is None or view.started <= withdrawn_at:
        return False
    return not (view.allocatable.get((share, uuid)) or view.holding(share, uuid) or promised)


def unclaimed(closed_since: float | None, now: float, prepared: Slots) -> bool:
    """The same for a GPU that claims are allocated of. `closed_since`: when the API's slice was first seen so."""
    return closed_since is not None and now - closed_since >= SCHEDULER_SECONDS and not prepared


BRIEF_SECONDS = 5.0
"""A daemon or server that is lost is back within 3 s (measured on an H200), sooner than the scheduler hears that slots
were withdrawn: up to 10 s later, with the kubelet's next node status. Until it hears, the kubelet fails for good every
pod that comes; with slots still offered such a pod waits at the gate. So it is longer outages that withdraw them.
"""
CLOSING = (DaemonReason.GPU_LOST, DaemonReason.STOPPING, DaemonReason.CLIENT_TABLE_FULL)
"""What does not pass by itself soon."""
DRAINED_STAGES = (GpuStage.DRAIN, GpuStage.NOTHING_TO_DRAIN)


@dataclass(frozen=True, slots=True)
class DecisionInput:
    """Everything a tick decides on. Times are CLOCK_BOOTTIME seconds."""

    now: float
    assignments: tuple[Assignment, ...] | None
    shares: Mapping[ShareName, GpuShare]
    on_disk: Mapping[Uuid, DaemonFiles]
    views: Mapping[Uuid, GpuView]
    kubelet: KubeletView | None
    promised: Holdings
    """Slots handed out that no reading of the kubelet has settled, and what prepared claims hold."""
    server_since: Mapping[Uuid, float]
    withdrawn_at: Mapping[Uuid, float]
    client_ceiling: int
    """MPS contexts that the driver takes on one GPU."""
    verified_at: Mapping[ShareGpu, float] = field(default_factory=dict)
    """When this agent last found that containers of a share may start on a GPU."""
    closed_since: Mapping[Uuid, float] = field(default_factory=dict)
    """Since when the API's ResourceSlice lets no claim have a GPU; of shares that are delivered by claims."""
    undeliverable: str = ""
    """Why no client could be given any GPU here, such as a missing driver; empty when it could."""
    modes: ComputeModes = ComputeModes.MANAGE


@dataclass(frozen=True, slots=True)
class GpuDecision:
    plan: GpuPlan
    verdict: Readiness
    held: Slots
    drained: bool
    offer: GpuOffer


def decide(picture: DecisionInput) -> dict[Uuid, GpuDecision]:
    wanted = {uuid: item.wanted for uuid, item in picture.on_disk.items()}
    drained = {uuid for uuid in wanted if _idle(picture, wanted[uuid].share, uuid)}
    plans = plan(picture.assignments, wanted, picture.shares, drained)
    return {uuid: _decide_gpu(picture, plans[uuid], uuid in drained) for uuid in plans}


def _decide_gpu(picture: DecisionInput, planned: GpuPlan, idle_for_good: bool) -> GpuDecision:
    held = _held(picture, planned.share, planned.uuid)
    share = picture.shares.get(planned.share)
    verdict = _with_room(_verdict(picture, planned), picture, planned, share, held)
    drained = planned.stage is GpuStage.NOTHING_TO_DRAIN or (planned.stage in DRAINED_STAGES and idle_for_good)
    takes_pods = verdict.takes_clients or _soon_again(picture, planned, verdict)
    offer = offer_of(planned, share, takes_pods, picture.views.get(planned.uuid), held)
    return GpuDecision(planned, verdict, held, drained, offer)


def _soon_again(picture: DecisionInput, planned: GpuPlan, verdict: Readiness) -> bool:
    verified_at = picture.verified_at.get((planned.share, planned.uuid))
    return verified_at is not None and verdict.reason not in CLOSING and picture.now - verified_at < BRIEF_SECONDS


def _verdict(picture: DecisionInput, planned: GpuPlan) -> Readiness:
    item = picture.on_disk.get(planned.uuid)
    if item is None:
        return Readiness(DaemonReason.PENDING, "the GPU is about to be taken")
    if picture.undeliverable:
        return Readiness(DaemonReason.DAEMON_FAILED, picture.undeliverable)
    if planned.ends_clients:
        message = (
            f"maxWait of GpuShare {planned.share} is over: clients are ended, and none starts until the change is made"
        )
        return Readiness(DaemonReason.STOPPING, message)
    return judge(
        ReadinessInput(
            wanted=item.wanted,
            state=item.state,
            view=picture.views.get(planned.uuid),
            client_control=item.client_control,
            server_since=picture.server_since.get(planned.uuid, picture.now),
            now=picture.now,
            modes=picture.modes,
        )
    )


def _with_room(
    verdict: Readiness, picture: DecisionInput, planned: GpuPlan, share: GpuShare | None, held: Slots
) -> Readiness:
    item = picture.on_disk.get(planned.uuid)
    if share is None or item is None or item.state is None:
        return verdict
    clients = share.spec.clients
    free = len(held) < clients.per_gpu
    return with_room(verdict, item.state.contexts, picture.client_ceiling, clients.processes, free)


def _held(picture: DecisionInput, share: ShareName, uuid: Uuid) -> Slots:
    listed = picture.kubelet.held if picture.kubelet else {}
    return united(listed, picture.promised).get((share, uuid), frozenset())


def _idle(picture: DecisionInput, share: ShareName, uuid: Uuid) -> bool:
    promised = picture.promised.get((share, uuid), frozenset())
    model = picture.shares.get(share)
    if model is not None and model.by_claims:
        return unclaimed(picture.closed_since.get(uuid), picture.now, promised)
    return idle(share, uuid, picture.withdrawn_at.get(uuid), picture.kubelet, promised)
