"""`kubectl gpushare describe`: everything about one share, node or pod. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from gpushare.api.gpunode import DaemonStatus, Finding, GpuNode
from gpushare.api.gpushare import GpuShare
from gpushare.api.meta import Condition
from gpushare.api.quantity import format_mib
from gpushare.kube.pods import Pod, containers, full_name, has_ended, limits, phase
from gpushare.kube.resources import Object
from gpushare.kubectl.output.report import Column, Report, Row, Sentences, Short, Table, short_uuids
from gpushare.kubectl.views.events import OF_AN_OBJECT, of_an_object
from gpushare.kubectl.views.moments import age
from gpushare.kubectl.views.objects import gpu_state, memory_limits
from gpushare.kubectl.views.places import PLACES, places_rows, queue_of
from gpushare.kubectl.views.pods.pod import PodFacts, findings, gpus, grants
from gpushare.kubectl.views.pods.trouble import trouble
from gpushare.kubectl.views.pods.why import why
from gpushare.kubectl.views.status import BORROWERS, borrowers
from gpushare.messages.wording import count_of, named

INDENT = 2
MOST_NAMED = 3
CONDITIONS = (
    Column("TYPE"),
    Column("STATUS"),
    Column("SINCE", dropped=1),
    Column("REASON"),
    Column("MESSAGE", text=True),
)
FINDINGS = (
    Column("POD"),
    Column("GPU", dropped=1),
    Column("REASON"),
    Column("SINCE", dropped=2),
    Column("MESSAGE", text=True),
)
GPUS_OF_SHARE = (
    Column("NODE"),
    Column("GPU"),
    Column("PRODUCT", dropped=1),
    Column("STATE"),
    Column("HELD"),
    Column("PODS", text=True),
)
GPUS_OF_NODE = (
    Column("INDEX"),
    Column("GPU"),
    Column("PRODUCT", dropped=1),
    Column("MEMORY", dropped=3),
    Column("SHARE"),
    Column("STATE"),
    Column("LIMITS", dropped=2),
    Column("HELD"),
    Column("PODS", text=True),
)
PODS = (Column("POD"), Column("PHASE"), Column("NODE", dropped=1), Column("AGE"), Column("WHY", text=True))
NEIGHBOURS = (Column("GPU"), Column("NODE"), Column("SHARE"), Column("STATE"), Column("NEIGHBOURS", text=True))


def describe_share(
    share: GpuShare,
    nodes: Sequence[GpuNode],
    pods: Sequence[Pod] | None,
    events: Iterable[Object],
    at: datetime,
    silence: str = "",
) -> Report:
    """`pods`: of all namespaces; None where the user may not list them. `silence`: of the operator, if it is silent."""
    spec, state = share.spec, share.status
    short = short_uuids(gpu.uuid for node in nodes for gpu in node.status.gpus)
    waiting = [pod for pod in pods or () if _asks_for(pod, share.resource) and _waits(pod)]
    own = [finding for node in nodes for finding in node.status.findings if finding.share == share.name]
    rows = [
        ("Name:         ", share.name),
        ("Age:          ", age(share.metadata.creation_timestamp, at)),
        ("Delivery:     ", spec.delivery.value),
        ("GPUs:         ", f"{state.summary or '0/0'} ready, {state.gpus.matching} match"),
        *_delivered(share),
        *([("Operator:     ", silence)] if silence else []),
    ]
    if state.claims:
        rows.append(("Claims:       ", f"{state.claims.allocated} allocated, {state.claims.pending} pending"))
        rows += [("  pending:    ", f"{item.claim}: {item.message}") for item in state.claims.unplaced]
    rows += [
        ("Unavailable:  ", f"{count_of(item.count, 'GPU')}, {item.reason}: {item.message}")
        for item in state.unavailable
    ]
    return Report(
        {
            "share": share.wire(),
            "pendingPods": [full_name(pod) for pod in waiting],
            "findings": [finding.wire() for finding in own],
        },
        [
            Sentences(rows),
            *_titled("Conditions:", CONDITIONS, _conditions(state.conditions, at)),
            *_titled("GPUs:", GPUS_OF_SHARE, _gpus_of_share(share, nodes, short)),
            *_titled("Places:", PLACES, list(places_rows(nodes, short, share.name))),
            *_titled("Pods that do not run:", PODS, [_waiting(pod, at) for pod in waiting]),
            *_titled("Findings:", FINDINGS, _findings(own, short, at)),
            *_titled("Events:", OF_AN_OBJECT, of_an_object(events, at)),
        ],
        together=True,
    )


def _delivered(share: GpuShare) -> list[tuple[str, str]]:
    """What a container gets."""
    slots, clients = share.status.slots, share.clients
    if share.whole:
        return [("Whole GPUs:   ", f"{slots.used} held of {slots.total}, as {share.resource}")]
    return [
        ("Slots:        ", f"{slots.used} held of {slots.total}, {share.slots_per_gpu} on each GPU"),
        *(("Places:       ", places) for places in [queue_of(share)] if places),
        ("Threads:      ", f"{clients.threads.default}% by default, {clients.threads.max}% at most"),
        ("Memory:       ", f"{clients.memory.default} by default, {format_mib(share.memory_max_mib)} at most"),
        *(("Limits:       ", limits) for limits in [memory_limits(share)] if limits),
        ("Processes:    ", f"{clients.processes} of each client"),
        *(("Classes:      ", classes) for classes in [_classes(share)] if classes),
        ("Enforcement:  ", share.spec.enforcement.value),
    ]


def _classes(share: GpuShare) -> str:
    """Which there are, and for whom; empty: none."""
    classes = share.classes
    if classes is None:
        return ""
    namespaces, protected = classes.protected.namespaces, classes.protected.per_gpu
    of = f" of {named('namespace', namespaces, MOST_NAMED)}" if namespaces else ""
    return (
        f"{classes.default} by default, {', '.join(classes.allowed)}; {protected} Protected on a GPU{of}; BestEffort"
        f" has {classes.best_effort.threads_beside_protected}% of the SMs beside them"
    )


def describe_node(node: GpuNode, events: Iterable[Object], at: datetime) -> Report:
    state = node.status
    short = short_uuids(gpu.uuid for gpu in state.gpus)
    rows = [
        ("Name:          ", node.name),
        ("Agent:         ", node.silence or f"reports, version {state.agent_version or 'unknown'}"),
        ("Driver:        ", f"{state.driver_version}, CUDA {state.cuda_version}"),
        ("Clients:       ", f"{count_of(state.client_ceiling, 'MPS context')} on each GPU at most"),
        ("Compute mode:  ", state.compute_mode_policy.value),
    ]
    protocols = sorted({daemon.protocol for daemon in state.daemons if daemon.protocol})
    if protocols:
        rows.append(("MPS protocol:  ", ", ".join(protocols)))
    if state.simulated:
        rows.append(("Simulated:     ", "yes: these GPUs are no hardware"))
    rows += [
        ("Whole GPU:     ", f"{holder.namespace}/{holder.pod} asks for {holder.resource}")
        for holder in state.foreign_holders
    ]
    rows += [
        ("Not through MPS:", f" PID {process.pid} ({process.command}) on GPU {gpu.uuid}, {process.memory_mib}Mi")
        for gpu in state.gpus
        for process in gpu.foreign_processes
    ]
    return Report(
        {"node": node.wire()},
        [
            Sentences(rows),
            *_titled("Conditions:", CONDITIONS, _conditions(state.conditions, at)),
            *_titled("GPUs:", GPUS_OF_NODE, _gpus_of_node(node, short)),
            *_titled("Places:", PLACES, list(places_rows([node], short))),
            *_titled("Findings:", FINDINGS, _findings(state.findings, short, at)),
            *_titled("Borrowers:", BORROWERS, list(borrowers(node, short))),
            *_titled("Events:", OF_AN_OBJECT, of_an_object(events, at)),
        ],
        together=True,
    )


def describe_pod(facts: PodFacts, at: datetime) -> Report:
    pod, answer, held = facts.pod, why(facts), gpus(facts)
    short = short_uuids(gpu.uuid for gpu in held)
    rows = [
        ("Name:      ", facts.name),
        ("Node:      ", str((pod.get("spec") or {}).get("nodeName") or "none yet")),
        ("Phase:     ", phase(pod)),
        ("Age:       ", age(pod["metadata"].get("creationTimestamp"), at)),
        ("Why:       ", answer.sentence),
        ("  see:     ", answer.source),
        *([("  hint:    ", answer.hint)] if answer.hint else []),
        *((f"Grant:     {container}: ", amounts) for container, amounts in grants(facts)),
    ]
    above = findings(facts)
    neighbours = [
        (
            short[held_gpu.uuid],
            held_gpu.node,
            held_gpu.share,
            held_gpu.daemon.reason if held_gpu.daemon else "",
            ", ".join(held_gpu.neighbours),
        )
        for held_gpu in held
    ]
    data: dict[str, Any] = {
        "pod": facts.name,
        "why": {"stage": answer.stage.value, "sentence": answer.sentence, "source": answer.source, "hint": answer.hint},
        "grants": [{"container": container, "amounts": amounts} for container, amounts in grants(facts)],
        "gpus": [
            {
                "node": held_gpu.node,
                "uuid": held_gpu.uuid,
                "share": held_gpu.share,
                "neighbours": list(held_gpu.neighbours),
            }
            for held_gpu in held
        ],
        "findings": [finding.wire() for finding in above],
    }
    return Report(
        data,
        [
            Sentences(rows),
            *_titled("GPUs:", NEIGHBOURS, neighbours),
            *_titled("Findings:", FINDINGS, _findings(above, short, at)),
            *_titled("Events:", OF_AN_OBJECT, of_an_object(facts.events, at)),
        ],
        together=True,
    )


def _titled(title: str, columns: Sequence[Column], rows: Sequence[Row]) -> list[Sentences | Table]:
    return [Sentences([(title, "")]), Table(columns, rows, indent=INDENT)] if rows else []


def _conditions(conditions: Iterable[Condition], at: datetime) -> list[Row]:
    return [
        (condition.type, condition.status, age(condition.last_transition_time, at), condition.reason, condition.message)
        for condition in conditions
    ]


def _findings(above: Iterable[Finding], short: Mapping[str, Short], at: datetime) -> list[Row]:
    return [
        (
            f"{finding.namespace}/{finding.pod}" if finding.pod else f"PID {finding.pid}",
            short.get(finding.uuid, finding.uuid),
            finding.reason,
            age(finding.since, at),
            finding.message,
        )
        for finding in above
    ]


def _gpus_of_share(share: GpuShare, nodes: Iterable[GpuNode], short: Mapping[str, Short]) -> list[Row]:
    rows: list[Row] = []
    for node in nodes:
        known = {gpu.uuid: gpu for gpu in node.status.gpus}
        holders = {(item.uuid, item.share): item for item in node.status.holders}
        for daemon in node.status.daemons:
            if daemon.share != share.name:
                continue
            gpu, holder = known.get(daemon.uuid), holders.get((daemon.uuid, share.name))
            state = gpu_state(gpu, daemon, node) if gpu else daemon.reason
            held, pods = (len(holder.slots), ", ".join(holder.pods)) if holder else (0, "")
            product = gpu.product if gpu else ""
            rows.append((node.name, short.get(daemon.uuid, daemon.uuid), product, state, str(held), pods))
    return rows


def _gpus_of_node(node: GpuNode, short: Mapping[str, Short]) -> list[Row]:
    daemons = {daemon.uuid: daemon for daemon in node.status.daemons}
    holders = {item.uuid: item for item in node.status.holders}
    rows: list[Row] = []
    for gpu in node.status.gpus:
        daemon, holder = daemons.get(gpu.uuid), holders.get(gpu.uuid)
        now = daemon.current_limits if daemon else None
        rows.append(
            (
                str(gpu.index),
                short[gpu.uuid],
                gpu.product,
                format_mib(gpu.memory_mib),
                daemon.share if daemon else "",
                gpu_state(gpu, daemon, node),
                f"{now.threads}%/{format_mib(now.memory_mib)}" if now else _whole(daemon),
                str(len(holder.slots)) if holder else "0",
                ", ".join(holder.pods) if holder else "",
            )
        )
    return rows


def _whole(daemon: DaemonStatus | None) -> str:
    return f"whole, {daemon.resource}" if daemon is not None and daemon.resource else ""


def _asks_for(pod: Pod, resource: str) -> bool:
    return any(resource in limits(container) for container in containers(pod))


def _waits(pod: Pod) -> bool:
    return not has_ended(pod) and trouble(pod) is not None


def _waiting(pod: Pod, at: datetime) -> Row:
    reason = trouble(pod)
    node = str((pod.get("spec") or {}).get("nodeName") or "")
    return (
        full_name(pod),
        phase(pod),
        node,
        age(pod["metadata"].get("creationTimestamp"), at),
        reason.cause if reason else "",
    )
