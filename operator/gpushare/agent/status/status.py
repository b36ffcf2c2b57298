"""GpuNode.status from what the agent knows. Pure; the order of everything is fixed, so that equal means equal.

What waits for clients on this node, since when and for whom, as the sentence of a condition. Pure.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from gpushare.agent.gpus.inventory import LOWEST_CLIENT_CEILING, DriverVersions, GpuView
from gpushare.agent.kubelet.holdings import Slots
from gpushare.agent.reconcile.assignments import GpuPlan, GpuStage
from gpushare.agent.reconcile.readiness import Readiness
from gpushare.api.conditions import DaemonReason
from gpushare.api.gpunode import (
    MAX_GPUS,
    MAX_PODS,
    Assignment,
    ComputeMode,
    ComputeModes,
    DaemonStatus,
    Finding,
    ForeignHolder,
    ForeignProcess,
    Gpu,
    GpuNodeStatus,
    Holder,
    Limits,
    ShareName,
    Uuid,
)
from gpushare.api.meta import Condition
from gpushare.mps.wire import DaemonState

PodNames = Mapping[tuple[ShareName, Uuid], Collection[str]]


def what_waits(assignments: Iterable[Assignment], pods: PodNames) -> str:
    """Empty when nothing waits. `pods`: namespace/name of those that hold slots."""
    waiting = sorted((item for item in assignments if item.waiting_since is not None), key=lambda item: item.uuid)
    return "; ".join(_sentence(item, pods.get((item.share, item.uuid), ())) for item in waiting)


def _sentence(item: Assignment, pods: Collection[str]) -> str:
    change = "to leave it" if item.draining else "for a new MPS pod"
    whom = f"for {named(pods)}" if pods else "for nobody any more: the change is being made"
    end = "; maxWait is over, so its clients are being ended" if item.end_clients else ""
    return f"GPU {item.uuid} of GpuShare {item.share} waits {change} since {item.waiting_since}, {whom}{end}"


def named(pods: Collection[str], most: int = MAX_PODS) -> str:
    """Such as `pod ml/a` or `pods ml/a, ml/b and 3 more`."""
    listed = sorted(pods)
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return f"pod{'' if len(listed) == 1 else 's'} {', '.join(listed[:most])}{more}"


FOREIGN = 16
"""Bound of the API on foreign processes and holders."""

NVIDIA_PREFIXES = ("nvidia.com/gpu", "nvidia.com/mig-")
NVML_REACHABLE = "NvmlReachable"
KUBELET_REACHABLE = "KubeletReachable"
WAITING_FOR_CLIENTS = "WaitingForClients"
WITHIN_GRANTS = "WithinGrants"
GPUS_EXCLUSIVE = "GpusExclusive"


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """What is known of one GPU that a share has or gets. `view` is None where NVML never showed it."""

    plan: GpuPlan
    verdict: Readiness
    state: DaemonState | None
    drained: bool
    note: str = ""
    """What the agent itself is waiting for or failing at; told instead of the verdict."""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    generation: int
    agent_version: str
    simulated: bool
    driver: DriverVersions | None
    views: Mapping[Uuid, GpuView]
    original_modes: Mapping[Uuid, ComputeMode | None]
    gpus: Collection[GpuFacts]
    held: Mapping[tuple[ShareName, Uuid], Slots] | None
    """None while the kubelet has not been read yet: the holders told last stay."""
    holding: PodNames = field(default_factory=dict)
    """The pods that hold slots, by (share, GPU)."""
    assignments: Collection[Assignment] = ()
    pods: Iterable[Mapping[str, Any]] = ()
    findings: Sequence[Finding] | None = None
    """None while nothing was judged yet: what was told last stays."""
    nvml_error: str = ""
    kubelet_error: str = ""
    now: str = ""
    """RFC 3339, for conditions that change."""
    modes: ComputeModes = ComputeModes.MANAGE


def build(facts: NodeFacts, before: GpuNodeStatus) -> GpuNodeStatus:
    """`before`: what the API holds now."""
    servers = {item.state.server_pid for item in facts.gpus if item.state is not None}
    return GpuNodeStatus(
        observed_generation=facts.generation,
        simulated=facts.simulated,
        driver_version=facts.driver.version if facts.driver else "",
        cuda_version=facts.driver.cuda_version if facts.driver else "",
        client_ceiling=facts.driver.client_ceiling if facts.driver else LOWEST_CLIENT_CEILING,
        agent_version=facts.agent_version,
        compute_modes=facts.modes,
        gpus=[
            _gpu(view, facts, servers)
            for view in sorted(facts.views.values(), key=lambda view: (view.info.index, view.info.uuid))
        ][:MAX_GPUS],
        daemons=[daemon for item in sorted(facts.gpus, key=lambda item: item.plan.uuid) if (daemon := _daemon(item))],
        holders=before.holders if facts.held is None else _holders(facts.held, facts.holding),
        foreign_holders=foreign_holders(facts.pods),
        findings=before.findings if facts.findings is None else list(facts.findings),
        conditions=_conditions(facts, before),
    )


def urgent(new: GpuNodeStatus, old: GpuNodeStatus) -> bool:
    """Whether somebody waits for this change: daemons coming, going, ready or drained; GPUs coming or lost;
    pods that hold whole GPUs."""

    def essence(status: GpuNodeStatus) -> object:
        return (
            [(item.uuid, item.share, item.ready, item.drained, item.wanted) for item in status.daemons],
            [(item.uuid, item.lost) for item in status.gpus],
            status.foreign_holders,
        )

    return essence(new) != essence(old)


def foreign_holders(pods: Iterable[Mapping[str, Any]]) -> list[ForeignHolder]:
    """Pods that have not ended and asked for a whole NVIDIA GPU or a MIG device."""
    found = {
        (pod["metadata"]["namespace"], pod["metadata"]["name"], resource)
        for pod in pods
        if pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")
        for resource in _asked_for(pod.get("spec", {}))
        if resource.startswith(NVIDIA_PREFIXES)
    }
    return [
        ForeignHolder(namespace=namespace, pod=name, resource=resource)
        for namespace, name, resource in sorted(found)[:FOREIGN]
    ]


def _asked_for(spec: Mapping[str, Any]) -> Iterable[str]:
    for container in [*spec.get("containers", ()), *(spec.get("initContainers") or ())]:
        resources = container.get("resources") or {}
        yield from {**(resources.get("requests") or {}), **(resources.get("limits") or {})}


def _gpu(view: GpuView, facts: NodeFacts, servers: Collection[int | None]) -> Gpu:
    info = view.info
    clients = {process.pid for process in view.processes.mps_clients}
    foreign = [
        ForeignProcess(pid=process.pid, memory_mib=process.memory_mib, command=view.commands.get(process.pid, "")[:64])
        for process in sorted(view.processes.compute, key=lambda process: process.pid)
        if process.pid not in clients and not _ours(process.pid, view, facts, servers)
    ]
    return Gpu(
        uuid=info.uuid,
        index=info.index,
        minor=info.minor,
        product=info.product[:64],
        memory_mib=info.memory_mib,
        sms=info.sms,
        compute_capability=info.compute_capability,
        numa_node=info.numa_node,
        compute_mode=view.mode,
        original_compute_mode=facts.original_modes.get(info.uuid),
        mig_enabled=info.mig_enabled,
        lost=view.lost,
        foreign_processes=foreign[:FOREIGN],
    )


def _ours(pid: int, view: GpuView, facts: NodeFacts, servers: Collection[int | None]) -> bool:
    """A server that state.json names, or one on a GPU of ours that it is about to name."""
    taken = any(item.plan.uuid == view.info.uuid for item in facts.gpus)
    return pid in servers or (taken and view.commands.get(pid) == "nvidia-cuda-mps-server")


def _daemon(item: GpuFacts) -> DaemonStatus | None:
    limits = item.plan.limits
    if limits is None and item.plan.stage is not GpuStage.NOTHING_TO_DRAIN:
        return None
    state = item.state
    told = Readiness(DaemonReason.STOPPING if item.plan.stage is GpuStage.STOP else item.verdict.reason, item.note)
    shown = told if item.note else item.verdict
    return DaemonStatus(
        uuid=item.plan.uuid,
        share=item.plan.share,
        ready=item.verdict.ready,
        reason=shown.reason.value,
        message=shown.message[:1024],
        wanted=limits or Limits(threads=1, memory_mib=1),
        in_force=state.in_force if state else None,
        server_pid=state.server_pid if state else None,
        restarts=state.restarts if state else 0,
        drained=item.drained,
    )


def _holders(held: Mapping[tuple[ShareName, Uuid], Slots], holding: PodNames) -> list[Holder]:
    return [
        Holder(uuid=uuid, share=share, slots=sorted(slots)[:64], pods=sorted(holding.get((share, uuid), ()))[:MAX_PODS])
        for (share, uuid), slots in sorted(held.items())
        if slots
    ][:MAX_GPUS]


def _conditions(facts: NodeFacts, before: GpuNodeStatus) -> list[Condition]:
    return [
        _condition(NVML_REACHABLE, facts.nvml_error, "NvmlError", facts, before),
        _condition(KUBELET_REACHABLE, facts.kubelet_error, "PodResourcesError", facts, before),
        _waiting(facts, before),
        *_within_grants(facts, before),
        *_exclusive(facts, before),
    ]


def _within_grants(facts: NodeFacts, before: GpuNodeStatus) -> list[Condition]:
    if facts.findings is None:
        return [item for item in before.conditions if item.type == WITHIN_GRANTS]
    if not facts.findings:
        return [_since(WITHIN_GRANTS, "True", "WithinGrants", "", facts, before)]
    first, more = facts.findings[0], len(facts.findings) - 1
    message = first.message + (f"; {more} more in status.findings" if more else "")
    return [_since(WITHIN_GRANTS, "False", first.reason, message, facts, before)]


def _exclusive(facts: NodeFacts, before: GpuNodeStatus) -> list[Condition]:
    """Where the agent sets the modes itself, a daemon that is ready says as much."""
    if facts.modes is ComputeModes.MANAGE:
        return []
    shared = {item.plan.uuid for item in facts.gpus}
    views = sorted((facts.views[uuid] for uuid in shared & facts.views.keys()), key=lambda view: view.info.uuid)
    told = [
        f"GPU {view.info.uuid} is in compute mode {view.mode.value}, which is left as it is: processes can use it past "
        f"MPS and every limit; `nvidia-smi -i {view.info.uuid} -c EXCLUSIVE_PROCESS` refuses them"
        for view in views
        if not view.lost and view.mode is not ComputeMode.EXCLUSIVE_PROCESS
    ]
    if not told:
        return [_since(GPUS_EXCLUSIVE, "True", "ExclusiveProcess", "", facts, before)]
    return [_since(GPUS_EXCLUSIVE, "False", "ComputeModeLeft", "; ".join(told), facts, before)]


def _waiting(facts: NodeFacts, before: GpuNodeStatus) -> Condition:
    """True while a change waits for clients of this node: the one condition here that is well when False."""
    message = what_waits(facts.assignments, facts.holding)
    reason = "ChangeWaits" if message else "NothingWaits"
    return _since(WAITING_FOR_CLIENTS, "True" if message else "False", reason, message, facts, before)


def _condition(kind: str, error: str, reason: str, facts: NodeFacts, before: GpuNodeStatus) -> Condition:
    if error:
        return _since(kind, "False", reason, error, facts, before)
    return _since(kind, "True", "Reachable", "", facts, before)


def _since(
    kind: str, status: Literal["True", "False"], reason: str, message: str, facts: NodeFacts, before: GpuNodeStatus
) -> Condition:
    old = next((item for item in before.conditions if item.type == kind), None)
    changed = old is None or old.status != status
    return Condition(
        type=kind,
        status=status,
        reason=reason,
        message=message[:2048],
        last_transition_time=facts.now if changed or old is None else old.last_transition_time,
    )
