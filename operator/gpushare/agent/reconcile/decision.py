"""One tick's decision over the whole node: a `DecisionInput` in, for each GPU a `GpuDecision` out. Pure.

The tick decides in two steps. `assess` says of each GPU what is planned and whether its daemon serves; the tick opens
and closes gates and takes steps by that. `decide` then makes the decision, which also knows what came of these steps.
Nothing changes a decision afterwards: the next tick makes another.

Guarantees: a GPU is idle only when the order of events proves it. Free slots are withdrawn; then a reading of the
kubelet begins that asks first what can be allocated and then what is held. Where the first answer names no slot of the
GPU, none can be allocated any more, so the second is final. An allocation that this reading may have missed is pending,
and a GPU with a pending slot is not idle. Of a share with a queue slots are held all the time: for a new MPS pod such
a GPU is idle once nobody has a place, or can get one (`nobody_has_a_place`).

Of claims the operator knows which are allocated, and waits for those. Here a GPU is idle when no claim is prepared and
the scheduler has had the time to see that the GPU is closed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from gpushare.agent.gpus.view import GpuView
from gpushare.agent.podresources.holdings import Holdings, KubeletView, ShareGpu, Slots, merged_holdings
from gpushare.agent.reconcile.assignments import GpuPlan, GpuStage, plan
from gpushare.agent.reconcile.daemon_files import DaemonFiles
from gpushare.agent.reconcile.offers import GpuOffer, offer_of
from gpushare.agent.reconcile.places import nobody_has_a_place
from gpushare.agent.reconcile.readiness import Readiness, ReadinessInput, readiness_of, with_room
from gpushare.agent.reconcile.whole_gpus import WholeGpu
from gpushare.api.compute_mode import ComputeModePolicy
from gpushare.api.conditions import DaemonReason
from gpushare.api.gpunode import Assignment, ShareName, Uuid
from gpushare.api.gpushare import GpuShare
from gpushare.grant.environment import client_environment
from gpushare.grant.model import default_grant
from gpushare.mps.wire import DaemonState

SCHEDULER_SECONDS = 5.0
"""A scheduler that saw the GPU open until it was closed has written its allocation by then, or will fail to."""
CLOSING = (DaemonReason.GPU_LOST, DaemonReason.STOPPING, DaemonReason.CLIENT_TABLE_FULL)
"""Reasons that do not pass by themselves soon: free slots are withdrawn at once."""
DRAINED_STAGES = (GpuStage.DRAIN, GpuStage.NOTHING_TO_DRAIN)
NOTHING: Mapping[Uuid, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class DecisionInput:
    """Everything that a tick's decision depends on. Times are CLOCK_BOOTTIME seconds."""

    now: float
    assignments: tuple[Assignment, ...] | None
    """What the GpuNode assigns; None: not known."""
    shares: Mapping[ShareName, GpuShare]
    on_disk: Mapping[Uuid, DaemonFiles]
    views: Mapping[Uuid, GpuView]
    kubelet: KubeletView | None
    pending: Holdings
    """Slots handed out that no reading of the kubelet has settled, and the parts that prepared claims hold."""
    server_since: Mapping[Uuid, float]
    """When this agent first read the current server_pid."""
    withdrawn_at: Mapping[Uuid, float]
    """When the free slots of a GPU were withdrawn; without those that offer free slots."""
    client_ceiling: int
    """MPS contexts that the driver takes on one GPU."""
    brief_seconds: float
    """An outage of this length withdraws free slots; see `Intervals.brief`."""
    verified_at: Mapping[ShareGpu, float] = field(default_factory=dict)
    """When this agent last found that containers of a share may start on a GPU."""
    closed_since: Mapping[Uuid, float] = field(default_factory=dict)
    """The time since which the ResourceSlice lets no claim have a GPU; of shares that are delivered by claims."""
    shut_since: Mapping[Uuid, float] = field(default_factory=dict)
    """The time since which grants.json lets nobody in to a GPU."""
    undeliverable: str = ""
    """Why no client could be given any GPU here, such as a missing driver; empty when it could."""
    daemonless: str = ""
    """Why no MPS daemon can be started here, such as a missing executable; empty when one could."""
    claims_known: bool = True
    """False: claims that an earlier agent prepared may be missing in `pending`, so no GPU is idle."""
    modes: ComputeModePolicy = ComputeModePolicy.MANAGE
    whole: Mapping[Uuid, WholeGpu] = field(default_factory=dict)
    """The GPUs taken that are given whole; `on_disk` has those that are shared."""
    names_taken: frozenset[str] = frozenset()
    """Resources of whole GPUs that another device plugin offers here, and under which no container has one of ours."""
    full: str = ""
    """The node's directory on which no file can be made any more; empty where one can."""
    generation: int = 0
    """The generation of the GpuNode that `assignments` were read from."""


@dataclass(frozen=True, slots=True)
class GpuAssessment:
    """One GPU before anything is done about it.

    `taken`: what its directory says; None: it is not taken. `readiness`: of its MPS daemon; of a GPU given whole, its
    own. `held`: slots of containers, with pending ones. `drained`: idle, of a GPU that is to be drained. `takes_pods`:
    it takes clients, or did a moment ago.
    """

    plan: GpuPlan
    taken: DaemonFiles | WholeGpu | None
    readiness: Readiness
    held: Slots
    drained: bool
    takes_pods: bool


@dataclass(frozen=True, slots=True)
class GpuDecision:
    """What holds for one GPU until the next tick. `plan`, `held`, `drained`: as of `GpuAssessment`.

    `readiness`: whether a container may start on it, its gate included. `share`, `view`: None where they are not known.
    `note`: what the agent itself waits for or fails at, for the status.
    """

    plan: GpuPlan
    readiness: Readiness
    held: Slots
    drained: bool
    offer: GpuOffer
    taken: DaemonFiles | WholeGpu | None = None
    share: GpuShare | None = None
    view: GpuView | None = None
    note: str = ""
    default_environment: Mapping[str, str] = field(default_factory=dict)
    """The share's default grant as variables, for a container that the webhook missed."""

    @property
    def files(self) -> DaemonFiles | None:
        """The files of a GPU that is shared; None of any other."""
        return self.taken if isinstance(self.taken, DaemonFiles) else None

    @property
    def state(self) -> DaemonState | None:
        """What its supervisor says; None: it has written nothing."""
        return self.files.state if self.files is not None else None

    @property
    def is_leaving(self) -> bool:
        """Whether its assignment is gone: no further container gets a part of it."""
        return self.plan.stage in (GpuStage.LEAVE, GpuStage.STOP)


@dataclass(frozen=True, slots=True)
class Decisions:
    """All that one tick decided, by GPU, and what that rests on."""

    given: DecisionInput
    gpus: Mapping[Uuid, GpuDecision]


class LatestDecisions:
    """The decisions of the latest tick, for all that read them. The tick alone writes it, once in each turn."""

    def __init__(self) -> None:
        self.decisions: Decisions | None = None
        """The latest; None: no tick has decided yet."""

    @property
    def gpus(self) -> Mapping[Uuid, GpuDecision]:
        return self.decisions.gpus if self.decisions is not None else {}

    def publish(self, decisions: Decisions) -> None:
        self.decisions = decisions


def assess(given: DecisionInput) -> dict[Uuid, GpuAssessment]:
    """One for each GPU that is assigned or taken."""
    desired = {uuid: item.wanted for uuid, item in given.on_disk.items()}
    owners = {uuid: item.share for uuid, item in given.whole.items()}
    owners |= {uuid: item.share for uuid, item in desired.items()}
    idle_gpus = {uuid for uuid, share in owners.items() if _is_idle(given, share, uuid)}
    plans = plan(given.assignments, desired, given.shares, idle_gpus, given.whole)
    return {uuid: _assess_gpu(given, plans[uuid], uuid in idle_gpus) for uuid in plans}


def decide(
    given: DecisionInput,
    assessed: Mapping[Uuid, GpuAssessment],
    gates: Mapping[Uuid, str] = NOTHING,
    notes: Mapping[Uuid, str] = NOTHING,
) -> Decisions:
    """`gates`: why a GPU's gate could not be opened or closed. `notes`: what else the agent waits for or fails at.

    A GPU whose gate fails is offered no more, and is not ready. Who runs on it may still attach.
    """
    return Decisions(
        given,
        MappingProxyType(
            {
                uuid: _decide_gpu(given, item, gates.get(uuid, ""), notes.get(uuid, ""))
                for uuid, item in assessed.items()
            }
        ),
    )


def idle(share: ShareName, uuid: Uuid, withdrawn_at: float | None, view: KubeletView | None, pending: Slots) -> bool:
    """Whether no container holds a slot of the GPU, or can get one.

    `withdrawn_at`: since when no free slot is offered, on the clock of `view.started`; None: one is offered.
    """
    if withdrawn_at is None or view is None or view.started <= withdrawn_at:
        return False
    return not (view.allocatable.get((share, uuid)) or view.holding(share, uuid) or pending)


def unclaimed(closed_since: float | None, now: float, prepared: Slots) -> bool:
    """The same as `idle`, of a GPU that claims are allocated of. `closed_since`: when its device was first seen
    tainted.
    """
    return closed_since is not None and now - closed_since >= SCHEDULER_SECONDS and not prepared


def _assess_gpu(given: DecisionInput, planned: GpuPlan, is_idle: bool) -> GpuAssessment:
    held = _held(given, planned.share, planned.uuid)
    share = given.shares.get(planned.share)
    readiness = _with_room(_readiness(given, planned), given, planned, share, held)
    drained = planned.stage is GpuStage.NOTHING_TO_DRAIN or (
        planned.stage in DRAINED_STAGES and (is_idle or _is_without_clients(given, planned))
    )
    takes_pods = readiness.takes_clients or _is_brief(given, planned, readiness)
    taken = given.on_disk.get(planned.uuid) or given.whole.get(planned.uuid)
    return GpuAssessment(planned, taken, readiness, held, drained, takes_pods)


def _decide_gpu(given: DecisionInput, item: GpuAssessment, gate: str, note: str) -> GpuDecision:
    planned, readiness = item.plan, item.readiness
    share, view = given.shares.get(planned.share), given.views.get(planned.uuid)
    if gate and readiness.takes_clients:
        readiness = Readiness(DaemonReason.GATE_NOT_OPEN, gate)
    elif gate:
        note = gate
    by_kubelet = given.kubelet.forgotten if given.kubelet is not None else {}
    forgotten = by_kubelet.get((planned.share, planned.uuid), frozenset())
    return GpuDecision(
        plan=planned,
        readiness=readiness,
        held=item.held,
        drained=item.drained,
        offer=offer_of(planned, share, item.takes_pods and not gate, view, item.held, forgotten),
        taken=item.taken,
        share=share,
        view=view,
        note=note,
        default_environment=_default_environment(share, view),
    )


def _default_environment(share: GpuShare | None, view: GpuView | None) -> Mapping[str, str]:
    if share is None or share.whole:
        return {}
    return client_environment(default_grant(share), view.info.memory_mib if view is not None else None)


def _is_brief(given: DecisionInput, planned: GpuPlan, readiness: Readiness) -> bool:
    """Whether the GPU took clients a moment ago and may soon do so again."""
    verified_at = given.verified_at.get((planned.share, planned.uuid))
    return verified_at is not None and readiness.reason not in CLOSING and given.now - verified_at < given.brief_seconds


def _readiness(given: DecisionInput, planned: GpuPlan) -> Readiness:
    item = given.on_disk.get(planned.uuid)
    if planned.uuid in given.whole and item is None:
        return whole_readiness(planned, given.views.get(planned.uuid), given)
    if item is None:
        return Readiness(DaemonReason.PENDING, "the GPU is about to be taken")
    if given.undeliverable:
        return Readiness(DaemonReason.DAEMON_FAILED, given.undeliverable)
    if given.daemonless and item.state is None and not item.wanted.stop:
        return Readiness(DaemonReason.DAEMON_FAILED, given.daemonless)
    if planned.ends_clients:
        message = (
            f"maxWait of GpuShare {planned.share} is over: clients are ended, and none starts until the change is made"
        )
        return Readiness(DaemonReason.STOPPING, message)
    return readiness_of(
        ReadinessInput(
            wanted=item.wanted,
            state=item.state,
            broker=item.broker,
            view=given.views.get(planned.uuid),
            client_control=item.client_control,
            server_since=given.server_since.get(planned.uuid, given.now),
            now=given.now,
            modes=given.modes,
            full=given.full,
        )
    )


def whole_readiness(planned: GpuPlan, view: GpuView | None, given: DecisionInput) -> Readiness:
    """Whether a container may start on a whole GPU."""
    if planned.stage is GpuStage.STOP:
        return Readiness(DaemonReason.STOPPING, f"the GPU leaves GpuShare {planned.share}")
    if given.undeliverable:
        return Readiness(DaemonReason.DAEMON_FAILED, given.undeliverable)
    if view is None:
        return Readiness(DaemonReason.PENDING, "NVML does not show this GPU")
    if view.lost:
        return Readiness(DaemonReason.GPU_LOST, "NVML no longer reaches the GPU: reset it or restart the node")
    if planned.resource in given.names_taken:
        return Readiness(
            DaemonReason.RESOURCE_NAME_TAKEN,
            f"another device plugin of this node offers {planned.resource}: take it from the node, or use a share with "
            "another spec.wholeGpus.resourceName",
        )
    return Readiness(DaemonReason.READY)


def _with_room(
    readiness: Readiness, given: DecisionInput, planned: GpuPlan, share: GpuShare | None, held: Slots
) -> Readiness:
    item = given.on_disk.get(planned.uuid)
    if share is None or item is None or item.state is None:
        return readiness
    clients = share.clients
    # A container of a queue starts without a place, and finds one later.
    free = share.queue is None and len(held) < clients.per_gpu
    return with_room(readiness, item.state.contexts, given.client_ceiling, clients.processes, free)


def _held(given: DecisionInput, share: ShareName, uuid: Uuid) -> Slots:
    listed = given.kubelet.held if given.kubelet else {}
    return merged_holdings(listed, given.pending).get((share, uuid), frozenset())


def _is_without_clients(given: DecisionInput, planned: GpuPlan) -> bool:
    """Whether a new MPS pod ends no client, although containers hold slots."""
    item = given.on_disk.get(planned.uuid)
    if item is None or not (planned.replaces_pod and planned.has_queue):
        return False
    return nobody_has_a_place(item, given.shut_since.get(planned.uuid), given.now)


def _is_idle(given: DecisionInput, share: ShareName, uuid: Uuid) -> bool:
    if not given.claims_known:
        return False
    pending = given.pending.get((share, uuid), frozenset())
    whole = given.whole.get(uuid)
    if whole is not None and whole.resource in given.names_taken and uuid not in given.on_disk:
        return not pending  # what the kubelet may allocate under this name is the other plugin's
    model = given.shares.get(share)
    if model is not None and model.by_claims:
        return unclaimed(given.closed_since.get(uuid), given.now, pending)
    return idle(share, uuid, given.withdrawn_at.get(uuid), given.kubelet, pending)
