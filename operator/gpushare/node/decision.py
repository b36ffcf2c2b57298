"""One tick's decision over the whole node. Pure: a picture in, what each GPU is, offers and may do out."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpushare.api.conditions import DaemonReason
from gpushare.api.gpunode import Assignment, ComputeModes, ShareName, Uuid
from gpushare.api.gpushare import GpuShare
from gpushare.node.assignments import GpuPlan, Stage, plan
from gpushare.node.daemons import OnDisk
from gpushare.node.draining import idle, unclaimed
from gpushare.node.holdings import Holdings, KubeletView, Place, Slots, united
from gpushare.node.inventory import GpuView
from gpushare.node.slots import GpuOffer, offer_of
from gpushare.node.verdict import Evidence, Verdict, judge, with_room

BRIEF_SECONDS = 5.0
"""A daemon or server that is lost is back within 3 s (measured on an H200), sooner than the scheduler hears that slots
were withdrawn: up to 10 s later, with the kubelet's next node status. Until it hears, the kubelet fails for good every
pod that comes; with slots still offered such a pod waits at the gate. So it is longer outages that withdraw them.
"""
CLOSING = (DaemonReason.GPU_LOST, DaemonReason.STOPPING, DaemonReason.CLIENT_TABLE_FULL)
"""What does not pass by itself soon."""
DRAINED_STAGES = (Stage.DRAIN, Stage.NOTHING_TO_DRAIN)


@dataclass(frozen=True, slots=True)
class Picture:
    """Everything a tick decides on. Times are CLOCK_BOOTTIME seconds."""

    now: float
    assignments: tuple[Assignment, ...] | None
    shares: Mapping[ShareName, GpuShare]
    on_disk: Mapping[Uuid, OnDisk]
    views: Mapping[Uuid, GpuView]
    kubelet: KubeletView | None
    promised: Holdings
    """Slots handed out that no reading of the kubelet has settled, and what prepared claims hold."""
    server_since: Mapping[Uuid, float]
    withdrawn_at: Mapping[Uuid, float]
    client_ceiling: int
    """MPS contexts that the driver takes on one GPU."""
    verified_at: Mapping[Place, float] = field(default_factory=dict)
    """When this agent last found that containers of a share may start on a GPU."""
    closed_since: Mapping[Uuid, float] = field(default_factory=dict)
    """Since when the API's ResourceSlice lets no claim have a GPU; of shares that are delivered by claims."""
    undeliverable: str = ""
    """Why no client could be given any GPU here, such as a missing driver; empty when it could."""
    modes: ComputeModes = ComputeModes.MANAGE


@dataclass(frozen=True, slots=True)
class GpuDecision:
    plan: GpuPlan
    verdict: Verdict
    held: Slots
    drained: bool
    offer: GpuOffer


def decide(picture: Picture) -> dict[Uuid, GpuDecision]:
    wanted = {uuid: item.wanted for uuid, item in picture.on_disk.items()}
    drained = {uuid for uuid in wanted if _idle(picture, wanted[uuid].share, uuid)}
    plans = plan(picture.assignments, wanted, picture.shares, drained)
    return {uuid: _decide_gpu(picture, plans[uuid], uuid in drained) for uuid in plans}


def _decide_gpu(picture: Picture, planned: GpuPlan, idle_for_good: bool) -> GpuDecision:
    held = _held(picture, planned.share, planned.uuid)
    share = picture.shares.get(planned.share)
    verdict = _with_room(_verdict(picture, planned), picture, planned, share, held)
    drained = planned.stage is Stage.NOTHING_TO_DRAIN or (planned.stage in DRAINED_STAGES and idle_for_good)
    takes_pods = verdict.takes_clients or _soon_again(picture, planned, verdict)
    offer = offer_of(planned, share, takes_pods, picture.views.get(planned.uuid), held)
    return GpuDecision(planned, verdict, held, drained, offer)


def _soon_again(picture: Picture, planned: GpuPlan, verdict: Verdict) -> bool:
    verified_at = picture.verified_at.get((planned.share, planned.uuid))
    return verified_at is not None and verdict.reason not in CLOSING and picture.now - verified_at < BRIEF_SECONDS


def _verdict(picture: Picture, planned: GpuPlan) -> Verdict:
    item = picture.on_disk.get(planned.uuid)
    if item is None:
        return Verdict(DaemonReason.PENDING, "the GPU is about to be taken")
    if picture.undeliverable:
        return Verdict(DaemonReason.DAEMON_FAILED, picture.undeliverable)
    if planned.ends_clients:
        message = (
            f"maxWait of GpuShare {planned.share} is over: clients are ended, and none starts until the change is made"
        )
        return Verdict(DaemonReason.STOPPING, message)
    return judge(
        Evidence(
            wanted=item.wanted,
            state=item.state,
            view=picture.views.get(planned.uuid),
            client_control=item.client_control,
            server_since=picture.server_since.get(planned.uuid, picture.now),
            now=picture.now,
            modes=picture.modes,
        )
    )


def _with_room(verdict: Verdict, picture: Picture, planned: GpuPlan, share: GpuShare | None, held: Slots) -> Verdict:
    item = picture.on_disk.get(planned.uuid)
    if share is None or item is None or item.state is None:
        return verdict
    clients = share.spec.clients
    free = len(held) < clients.per_gpu
    return with_room(verdict, item.state.contexts, picture.client_ceiling, clients.processes, free)


def _held(picture: Picture, share: ShareName, uuid: Uuid) -> Slots:
    listed = picture.kubelet.held if picture.kubelet else {}
    return united(listed, picture.promised).get((share, uuid), frozenset())


def _idle(picture: Picture, share: ShareName, uuid: Uuid) -> bool:
    promised = picture.promised.get((share, uuid), frozenset())
    model = picture.shares.get(share)
    if model is not None and model.by_claims:
        return unclaimed(picture.closed_since.get(uuid), picture.now, promised)
    return idle(share, uuid, picture.withdrawn_at.get(uuid), picture.kubelet, promised)
