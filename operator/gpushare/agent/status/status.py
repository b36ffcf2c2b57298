"""GpuNode.status from what the agent knows. Pure.

Guarantees: lists are in a fixed order, so a status that did not change equals the last one and costs no write; a
condition keeps its transition time while its status stays; what is not known yet stays as the API has it.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from gpushare.agent.gpus.inventory import described
from gpushare.agent.gpus.view import LOWEST_CLIENT_CEILING, DriverVersions, GpuView
from gpushare.agent.observe.borrowing import Shortage
from gpushare.agent.observe.granted import Reserved
from gpushare.agent.podresources.holdings import Slots
from gpushare.agent.reconcile.assignments import GpuStage
from gpushare.agent.reconcile.decision import GpuDecision
from gpushare.api import names
from gpushare.api.compute_mode import ComputeMode, ComputeModePolicy
from gpushare.api.conditions import (
    AGENT_REPORTING,
    GPUS_EXCLUSIVE,
    MEMORY_PRESSURE,
    NVML_REACHABLE,
    ConditionType,
    DaemonReason,
    EventReason,
    GpuReason,
    ShareReason,
)
from gpushare.api.gpunode import (
    MAX_GPUS,
    MAX_PODS,
    Assignment,
    Borrower,
    DaemonStatus,
    Finding,
    ForeignHolder,
    ForeignProcess,
    Gpu,
    GpuNodeStatus,
    GpuPlaces,
    Holder,
    Limits,
    ShareName,
    UnusedPart,
    Uuid,
)
from gpushare.api.meta import Condition
from gpushare.kube.pods import Pod, containers, has_ended, is_bound, is_taken_up, requested_resources
from gpushare.messages.wording import named
from gpushare.mps.wire import DaemonLimits

MAX_SLOTS = 256
"""Bound of the API on the slots of a holder."""
MAX_FOREIGN = 16
"""Bound of the API on foreign processes and on foreign holders."""
MPS_SERVER = "nvidia-cuda-mps-server"

KUBELET_REACHABLE = "KubeletReachable"
DRIVER_REACHABLE = "DriverFilesReachable"
WAITING_FOR_CLIENTS = "WaitingForClients"
WITHIN_GRANTS = "WithinGrants"

PodNames = Mapping[tuple[ShareName, Uuid], Collection[str]]
"""namespace/name of the pods that hold slots, by (share, GPU)."""
NOBODY: PodNames = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class NodeFacts:
    generation: int
    agent_version: str
    simulated: bool
    driver: DriverVersions | None
    views: Mapping[Uuid, GpuView]
    original_modes: Mapping[Uuid, ComputeMode | None]
    gpus: Collection[GpuDecision]
    """The GPUs that a share has or gets."""
    held: Mapping[tuple[ShareName, Uuid], Slots] | None
    """None while the kubelet has not been read yet: the holders in the API stay."""
    holding: PodNames = field(default_factory=dict)
    assignments: Collection[Assignment] = ()
    pods: Collection[Pod] | None = ()
    """None while this node's pods are not known: the foreign holders in the API stay."""
    findings: Sequence[Finding] | None = None
    """None while nothing was judged yet: the findings in the API stay."""
    borrowers: Sequence[Borrower] | None = None
    """None while nothing was judged yet: the borrowers in the API stay."""
    short: Mapping[Uuid, Shortage] | None = None
    """The GPUs that are short of memory. None: no client of this node may borrow any."""
    reserved: Mapping[tuple[ShareName, Uuid], Reserved] = field(default_factory=dict)
    """The sums of shares whose clients may borrow."""
    places: Sequence[GpuPlaces] = ()
    """Of shares with a queue."""
    unused: Sequence[UnusedPart] | None = None
    """None while nothing was observed yet: the unused parts in the API stay."""
    pre_stop_mounted: bool | None = None
    """None while no container with a part of a GPU was seen: what the API says stays."""
    nvml_error: str = ""
    kubelet_error: str = ""
    driver_error: str = ""
    """Which of the driver's files that containers need are missing."""
    nvidia_claims: Collection[tuple[str, str]] = ()
    """(namespace, name) of the pods that have a GPU by a claim of NVIDIA's DRA driver."""
    offered_by_nvidia: Sequence[str] = ()
    """What of NVIDIA's offers GPUs of this node to pods: resources of its device plugin, its DRA driver."""
    slice_error: str = ""
    """Why the API server takes no ResourceSlice of this node."""
    now: str = ""
    """RFC 3339, for conditions that change."""
    modes: ComputeModePolicy = ComputeModePolicy.MANAGE


def build(facts: NodeFacts, before: GpuNodeStatus) -> GpuNodeStatus:
    """`before`: what the API holds now."""
    whole = {item.plan.resource for item in facts.gpus if _given_whole(item)}
    return GpuNodeStatus(
        observed_generation=facts.generation,
        simulated=facts.simulated,
        agent_version=facts.agent_version,
        compute_mode_policy=facts.modes,
        **_hardware(facts, before),
        daemons=[daemon for item in sorted(facts.gpus, key=lambda item: item.plan.uuid) if (daemon := _daemon(item))],
        holders=before.holders if facts.held is None else _holders(facts.held, facts.holding, facts.reserved),
        places=sorted(facts.places, key=lambda item: item.uuid)[:MAX_GPUS],
        foreign_holders=before.foreign_holders
        if facts.pods is None
        else foreign_holders(facts.pods, whole, facts.nvidia_claims),
        findings=before.findings if facts.findings is None else list(facts.findings),
        borrowers=before.borrowers if facts.borrowers is None else list(facts.borrowers),
        unused=before.unused if facts.unused is None else list(facts.unused),
        pre_stop_mounted=before.pre_stop_mounted if facts.pre_stop_mounted is None else facts.pre_stop_mounted,
        conditions=_conditions(facts, before),
    )


def _hardware(facts: NodeFacts, before: GpuNodeStatus) -> dict[str, Any]:
    """What NVML says; until it has answered once, what the API holds."""
    if facts.nvml_error and not facts.views:
        return {key: getattr(before, key) for key in ("driver_version", "cuda_version", "client_ceiling", "gpus")}
    servers = {item.state.server_pid for item in facts.gpus if item.state is not None}
    views = sorted(facts.views.values(), key=lambda view: (view.info.index, view.info.uuid))
    return {
        "driver_version": facts.driver.version[:32] if facts.driver else "",
        "cuda_version": facts.driver.cuda_version[:16] if facts.driver else "",
        "client_ceiling": facts.driver.client_ceiling if facts.driver else LOWEST_CLIENT_CEILING,
        "gpus": [_gpu(view, facts, servers) for view in views][:MAX_GPUS],
    }


def own_part(read: GpuNodeStatus, built: GpuNodeStatus) -> GpuNodeStatus:
    """What the API holds, without what is the operator's: AgentReporting, and conditions that it set to Unknown.

    Those that `built` has are the agent's to take back. One that an agent of other settings left behind is not: no
    write of ours would end it.
    """
    ours = {item.type for item in built.conditions}
    own = [
        item
        for item in read.conditions
        if item.type in ours or (item.type != AGENT_REPORTING and item.reason != EventReason.AGENT_SILENT)
    ]
    return read.model_copy(update={"conditions": own})


def urgent(new: GpuNodeStatus, old: GpuNodeStatus) -> bool:
    """Whether others act on this change: MPS daemons that come, go, get ready or are drained; GPUs that come or are
    lost; pods that hold whole GPUs.
    """

    def essence(status: GpuNodeStatus) -> object:
        return (
            [(item.uuid, item.share, item.ready, item.drained, item.desired_limits) for item in status.daemons],
            [(item.uuid, item.lost) for item in status.gpus],
            status.foreign_holders,
        )

    return essence(new) != essence(old)


def what_waits(assignments: Iterable[Assignment], pods: PodNames, queued: PodNames = NOBODY) -> str:
    """The changes that wait for clients of this node, as sentences; empty if nothing waits. `queued`: the pods that
    have a place, of shares with a queue: a new MPS pod waits for those alone.
    """
    waiting = sorted((item for item in assignments if item.waiting_since is not None), key=lambda item: item.uuid)
    return "; ".join(_waiting_sentence(item, _awaited(item, pods, queued)) for item in waiting)


def _awaited(item: Assignment, pods: PodNames, queued: PodNames) -> Collection[str]:
    key = (item.share, item.uuid)
    return queued[key] if key in queued and not item.draining else pods.get(key, ())


def _pods_of(clients: Iterable[str]) -> set[str]:
    """namespace/name of the pods of containers, each as namespace/pod/container."""
    return {client.rpartition("/")[0] for client in clients}


def _waiting_sentence(item: Assignment, pods: Collection[str]) -> str:
    change = "to leave it" if item.draining else "for a new MPS pod"
    reason = f"for {name_pods(pods)}" if pods else "for no pod any more: the change is being made"
    end = "; maxWait is over, so its clients are being ended" if item.terminate_clients else ""
    return f"GPU {item.uuid} of GpuShare {item.share} waits {change} since {item.waiting_since}, {reason}{end}"


def name_pods(pods: Collection[str], most: int = MAX_PODS) -> str:
    """The pods in words, such as `pod ml/a` or `pods ml/a, ml/b and 3 more`."""
    return named("pod", sorted(pods), most)


def foreign_holders(
    pods: Iterable[Pod], own: Collection[str] = (), claims: Collection[tuple[str, str]] = ()
) -> list[ForeignHolder]:
    """Pods that have not ended and request a whole NVIDIA GPU or a MIG device, or have one by a claim. `own`: resources
    of our whole GPUs here. `claims`: (namespace, name) of those with a claim of NVIDIA's DRA driver.

    Without those that only name this node: their kubelet has not taken them up, and no scheduler has found room here.
    """
    pods = list(pods)
    holders = {
        (namespace, name, names.NVIDIA_DRA_DRIVER)
        for pod in pods
        if not has_ended(pod) and (namespace := pod["metadata"]["namespace"], name := pod["metadata"]["name"]) in claims
    }
    holders |= {
        (pod["metadata"]["namespace"], pod["metadata"]["name"], resource)
        for pod in pods
        for container in containers(pod)
        for resource in requested_resources(container)
        if resource.startswith(names.NVIDIA_RESOURCES) and resource not in own
        if not has_ended(pod) and (is_bound(pod) or is_taken_up(pod))
    }
    return [
        ForeignHolder(namespace=namespace, pod=name, resource=resource)
        for namespace, name, resource in sorted(holders)[:MAX_FOREIGN]
    ]


def offered_by_nvidia(allocatable: Iterable[str], own: Collection[str], *, by_claims: bool) -> list[str]:
    """What of NVIDIA's offers GPUs of this node. `allocatable`: the resources of the kubelet's devices; `own`: those of
    our whole GPUs; `by_claims`: NVIDIA's DRA driver serves here, or a pod has a GPU by it."""
    plugins = {resource for resource in allocatable if resource.startswith(names.NVIDIA_RESOURCES)}.difference(own)
    return [*sorted(plugins), *([names.NVIDIA_DRA_DRIVER] if by_claims else [])]


def offered_twice(resource: str) -> str:
    """What to say of a node whose GPUs a share and something of NVIDIA's offer. `resource`: NVIDIA's, or DRA driver."""
    what, label = f"its device plugin, as {resource}", "device-plugin"
    if resource == names.NVIDIA_DRA_DRIVER:
        what, label = f"its DRA driver {resource}", "dra-driver"
    return (
        f"GPUs of shares are offered by NVIDIA's parts, too: {what}. Pods that get one fail at its mode, or use it "
        f"past MPS and every limit; with the GPU Operator label the node nvidia.com/gpu.deploy.{label}=false"
    )


def _gpu(view: GpuView, facts: NodeFacts, servers: Collection[int | None]) -> Gpu:
    info = view.info
    clients = {process.pid for process in view.processes.mps_clients}
    whole = any(item.plan.uuid == info.uuid and _given_whole(item) for item in facts.gpus)
    foreign = [
        ForeignProcess(pid=process.pid, memory_mib=process.memory_mib, command=view.commands.get(process.pid, "")[:64])
        for process in sorted(view.processes.compute, key=lambda process: process.pid)
        if not whole  # who is on such a GPU without having it is a finding
        and process.pid not in clients
        and not _is_our_server(process.pid, view, facts, servers)
    ]
    known = {
        "original_compute_mode": facts.original_modes.get(info.uuid),
        "lost": view.lost,
        "foreign_processes": foreign[:MAX_FOREIGN],
    }
    return described(info, view.mode).model_copy(update=known)


def _given_whole(item: GpuDecision) -> bool:
    return bool(item.plan.resource) and item.plan.stage is not GpuStage.TAKE


def _is_our_server(pid: int, view: GpuView, facts: NodeFacts, servers: Collection[int | None]) -> bool:
    """Whether state.json names it, or is about to: an MPS server on a GPU that a share has."""
    shared = any(item.plan.uuid == view.info.uuid for item in facts.gpus)
    return pid in servers or (shared and view.commands.get(pid) == MPS_SERVER)


def _daemon(item: GpuDecision) -> DaemonStatus | None:
    limits = item.plan.limits
    if limits is None and not item.plan.resource and item.plan.stage is not GpuStage.NOTHING_TO_DRAIN:
        return None
    state = item.state
    reason = DaemonReason.STOPPING if item.note and item.plan.stage is GpuStage.STOP else item.readiness.reason
    return DaemonStatus(
        uuid=item.plan.uuid,
        share=item.plan.share,
        ready=item.readiness.ready,
        reason=reason.value,
        message=(item.note or item.readiness.message)[:1024],
        resource=item.plan.resource,
        desired_limits=_limits(limits),
        current_limits=_limits(state.in_force if state else None),
        server_pid=state.server_pid if state else None,
        protocol=state.protocol if state and state.server_pid is not None else "",
        restarts=state.restarts if state else 0,
        drained=item.drained,
    )


def _limits(limits: DaemonLimits | None) -> Limits | None:
    """The limits as the API has them."""
    if limits is None:
        return None
    return Limits(threads=limits.threads, memory_mib=limits.memory_mib)


def _holders(
    held: Mapping[tuple[ShareName, Uuid], Slots],
    holding: PodNames,
    reserved: Mapping[tuple[ShareName, Uuid], Reserved],
) -> list[Holder]:
    return [
        Holder(
            uuid=uuid,
            share=share,
            slots=sorted(slots)[:MAX_SLOTS],
            pods=sorted(holding.get((share, uuid), ()))[:MAX_PODS],
            reserved_mib=known.reserved_mib if (known := reserved.get((share, uuid))) is not None else None,
            limits_mib=known.limits_mib if known is not None else None,
        )
        for (share, uuid), slots in sorted(held.items())
        if slots
    ][:MAX_GPUS]


def _conditions(facts: NodeFacts, before: GpuNodeStatus) -> list[Condition]:
    return [
        _condition(NVML_REACHABLE, facts.nvml_error, "NvmlError", facts, before),
        _condition(KUBELET_REACHABLE, facts.kubelet_error, "PodResourcesError", facts, before),
        _condition(DRIVER_REACHABLE, facts.driver_error, "DriverFilesMissing", facts, before),
        _waiting(facts, before),
        *_within_grants(facts, before),
        *_memory_pressure(facts, before),
        *_exclusive(facts, before),
        *_writes_accepted(facts, before),
    ]


def _within_grants(facts: NodeFacts, before: GpuNodeStatus) -> list[Condition]:
    if facts.findings is None:
        return [item for item in before.conditions if item.type == WITHIN_GRANTS]
    if not facts.findings:
        return [_since(WITHIN_GRANTS, "True", "WithinGrants", "", facts, before)]
    first, more = facts.findings[0], len(facts.findings) - 1
    message = first.message + (f"; {more} more in status.findings" if more else "")
    return [_since(WITHIN_GRANTS, "False", first.reason, message, facts, before)]


def _memory_pressure(facts: NodeFacts, before: GpuNodeStatus) -> list[Condition]:
    """True while a GPU has less free memory than its clients have reserved. Only where clients may borrow."""
    if facts.short is None:
        return []
    if not facts.short:
        reason = EventReason.MEMORY_SUFFICIENT
        return [_since(MEMORY_PRESSURE, "False", reason, "", facts, before)]
    message = "; ".join(shortage.of(uuid) for uuid, shortage in sorted(facts.short.items()))
    return [_since(MEMORY_PRESSURE, "True", EventReason.MEMORY_SHORT, message, facts, before)]


def _exclusive(facts: NodeFacts, before: GpuNodeStatus) -> list[Condition]:
    """The condition, only if the agent leaves the modes alone, or from the moment on at which something of NVIDIA's
    offered the GPUs, too: otherwise a ready MPS daemon says as much."""
    shared = {item.plan.uuid for item in facts.gpus if not item.plan.resource}
    if facts.gpus and facts.offered_by_nvidia:
        first = facts.offered_by_nvidia[0]
        by_claims = first == names.NVIDIA_DRA_DRIVER
        reason = GpuReason.HELD_BY_NVIDIA_DRA if by_claims else GpuReason.HELD_BY_NVIDIA_PLUGIN
        return [_since(GPUS_EXCLUSIVE, "False", reason, offered_twice(first), facts, before)]
    if facts.modes is ComputeModePolicy.MANAGE:
        return _mended(GPUS_EXCLUSIVE, "ExclusiveProcess", facts, before)
    views = sorted((facts.views[uuid] for uuid in shared & facts.views.keys()), key=lambda view: view.info.uuid)
    open_gpus = [
        f"GPU {view.info.uuid} is in compute mode {view.mode.value}, which the agent leaves alone: processes can use "
        f"it past MPS and every limit; `nvidia-smi -i {view.info.uuid} -c EXCLUSIVE_PROCESS` is to refuse them "
        "(untested on hardware)"
        for view in views
        if not view.lost and view.mode is not ComputeMode.EXCLUSIVE_PROCESS
    ]
    if not open_gpus:
        return [_since(GPUS_EXCLUSIVE, "True", "ExclusiveProcess", "", facts, before)]
    return [_since(GPUS_EXCLUSIVE, "False", "ComputeModeLeft", "; ".join(open_gpus), facts, before)]


def _writes_accepted(facts: NodeFacts, before: GpuNodeStatus) -> list[Condition]:
    """There from the first refusal on. Of a status that is refused nothing can be said here: the heartbeat stops."""
    if not facts.slice_error:
        return _mended(ConditionType.WRITES_ACCEPTED, "WritesAccepted", facts, before)
    message = facts.slice_error
    return [_since(ConditionType.WRITES_ACCEPTED, "False", ShareReason.WRITE_REFUSED, message, facts, before)]


def _mended(kind: str, reason: str, facts: NodeFacts, before: GpuNodeStatus) -> list[Condition]:
    """A condition that is there since something was wrong. It stays, as True: one that the operator set to Unknown
    while this agent was silent would outlast a write without it."""
    return [_since(kind, "True", reason, "", facts, before)] if _known(kind, before) is not None else []


def _waiting(facts: NodeFacts, before: GpuNodeStatus) -> Condition:
    """True while a change waits for clients of this node: the only condition here for which False is good. It stays as
    it was while the kubelet, which knows the clients, was not read.
    """
    known = _known(WAITING_FOR_CLIENTS, before)
    if facts.held is None and known is not None:
        return known
    queued = {(item.share, item.uuid): _pods_of(item.held) for item in facts.places}
    message = what_waits(facts.assignments, facts.holding, queued)
    reason = "ChangeWaits" if message else "NothingWaits"
    return _since(WAITING_FOR_CLIENTS, "True" if message else "False", reason, message, facts, before)


def _condition(kind: str, error: str, reason: str, facts: NodeFacts, before: GpuNodeStatus) -> Condition:
    if error:
        return _since(kind, "False", reason, error, facts, before)
    return _since(kind, "True", "Reachable", "", facts, before)


def _known(kind: str, before: GpuNodeStatus) -> Condition | None:
    return next((item for item in before.conditions if item.type == kind), None)


def _since(
    kind: str, status: Literal["True", "False"], reason: str, message: str, facts: NodeFacts, before: GpuNodeStatus
) -> Condition:
    old = _known(kind, before)
    changed = old is None or old.status != status
    return Condition(
        type=kind,
        status=status,
        reason=reason,
        message=message[:2048],
        last_transition_time=facts.now if changed or old is None else old.last_transition_time,
    )
