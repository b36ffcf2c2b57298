"""A share's conditions: its state, and what to do about it.

Each function computes one condition. `Ready` repeats the first condition that is not True, except for a client above
its grant; while a share is being deleted, `Ready` says what the deletion waits for.
"""

from collections.abc import Iterable

from gpushare.api.conditions import ConditionType, DaemonReason, GpuReason, ShareReason
from gpushare.api.gpunode import Limits
from gpushare.api.names import FINALIZER
from gpushare.messages.refused_writes import refused_sentences
from gpushare.messages.wording import are, count_of, named
from gpushare.planner.gpu_record import GpuRecord
from gpushare.planner.held_gpus import HeldGpus, limits_key
from gpushare.planner.model import RefusalVerdict
from gpushare.planner.status.current import daemons_current
from gpushare.planner.status.exceeded import exceeded
from gpushare.planner.status.share_summary import ShareSummary
from gpushare.planner.waiting import awaited

FOREGROUND = "foregroundDeletion"
"""Kubernetes' finalizer of an object that is deleted with --cascade=foreground."""
NAMES_SHOWN = 3
KEPT = "those that run keep what they started with"
MESSAGE_LENGTH = 2048
"""Bound of the API on a condition's message."""

SEVERITY = (
    DaemonReason.GPU_LOST,
    DaemonReason.RESOURCE_NAME_TAKEN,
    DaemonReason.DAEMON_FAILED,
    DaemonReason.GPU_HELD_BY_FOREIGN_PROCESS,
    DaemonReason.NOFILE_TOO_LOW,
    DaemonReason.CONTROL_TIMEOUT,
    DaemonReason.SUPERVISOR_SILENT,
    DaemonReason.FAULTED,
    DaemonReason.SERVER_CONTEXT_LOST,
    DaemonReason.SERVER_NOT_ACTIVE,
    DaemonReason.LIMITS_NOT_IN_FORCE,
    DaemonReason.STOPPING,
    DaemonReason.STARTING,
    DaemonReason.PENDING,
)
"""Worst first: of several daemons that are not ready, this one's message is carried."""


def verdicts(summary: ShareSummary) -> tuple[RefusalVerdict, ...]:
    """Ready, GpusAssigned, DaemonsReady, LimitsEnforced, DaemonsCurrent, DeparturesGuarded, in this order; and
    WritesAccepted while the API server refuses a write.

    Ready does not depend on DaemonsCurrent: an outdated daemon serves as well as before. It does not repeat
    DeparturesGuarded, since where an agent is silent DaemonsReady is not known either.
    """
    parts = (gpus_assigned(summary), daemons_ready(summary), limits_enforced(summary))
    refused = (writes_accepted(summary),) if summary.refused_writes else ()
    return (ready(summary, parts), *parts, daemons_current(summary), departures_guarded(summary), *refused)


def gpus_assigned(summary: ShareSummary) -> RefusalVerdict:
    if summary.undeliverable:
        message = f'delivery "ResourceClaim": {summary.undeliverable}; use delivery "DevicePlugin"'
        return _verdict(ConditionType.GPUS_ASSIGNED, False, ShareReason.DELIVERY_UNSUPPORTED, message)
    if summary.share.deleting:
        held = summary.held
        message = f"{_on_nodes(held)} {are(len(held))} being given back" if held else "no GPU is held any more"
        return _verdict(ConditionType.GPUS_ASSIGNED, False, ShareReason.RELEASING, message)
    problems, leaving = _problems(summary), _leaving(summary)
    if summary.kept:
        reason = ShareReason.SOME_GPUS_UNAVAILABLE if problems else ShareReason.ASSIGNED
        message = "; ".join([f"{_on_nodes(summary.kept)} {are(len(summary.kept))} assigned", *leaving, *problems])
        return _verdict(ConditionType.GPUS_ASSIGNED, True, reason, message)
    if summary.matching == 0:
        message = "; ".join([_nothing_matches(summary), *leaving])
        reason = ShareReason.PRODUCT_MISMATCH if summary.no_product else ShareReason.NO_MATCHING_NODES
        return _verdict(ConditionType.GPUS_ASSIGNED, False, reason, message)
    message = "; ".join([f"none of {count_of(summary.matching, 'matching GPU')} can be taken", *leaving, *problems])
    return _verdict(ConditionType.GPUS_ASSIGNED, False, ShareReason.GPUS_UNAVAILABLE, message)


def daemons_ready(summary: ShareSummary) -> RefusalVerdict:
    kept = summary.kept
    if not kept:
        return _daemons_that_leave(summary)
    silent, unready = kept.silent, summary.unready
    if silent and not unready:
        message = f"{len(silent)} of {count_of(len(kept), 'MPS daemon')} unknown; {_silence(silent)}"
        return _unknown(ConditionType.DAEMONS_READY, message)
    if not unready and summary.share.whole:
        gpus, resource = count_of(len(kept), "GPU"), summary.share.resource
        message = f"{gpus} {are(len(kept))} offered whole as {resource}, without MPS daemons"
        return _verdict(ConditionType.DAEMONS_READY, True, ShareReason.DAEMONS_READY, message)
    if not unready:
        message = f"{count_of(len(kept), 'MPS daemon')} verified: server ACTIVE, limits in force"
        full = kept.where(lambda part: DaemonReason.CLIENT_TABLE_FULL in part.reasons, _is_full)
        if full:
            message += f"; {len(full)} with no room for another client; {_daemon_line(next(iter(full)))}"
        return _verdict(ConditionType.DAEMONS_READY, True, ShareReason.DAEMONS_READY, message)
    worst = _worst(unready)
    what = "whole GPU" if summary.share.whole else "MPS daemon"
    message = (
        f"{len(unready)} of {count_of(len(kept), what)} not ready; {_daemon_line(worst)}{_pod_line(summary, worst)}"
    )
    end = summary.starting_until
    starts = end is not None and summary.now < end
    reason = ShareReason.DAEMONS_STARTING if starts else ShareReason.DAEMON_NOT_READY
    return _verdict(ConditionType.DAEMONS_READY, False, reason, message)


def _daemons_that_leave(summary: ShareSummary) -> RefusalVerdict:
    """Of a share that keeps no GPU: the daemons of those that it gives back serve on until the last client ends."""
    busy, left = _with_clients(summary), summary.held
    unready = busy.where(lambda part: not part.serving, lambda record: not record.verified)
    if not busy:
        message = "no GPU is assigned, so no daemon runs"
        if left:
            ending = "" if summary.share.whole else ", and their MPS daemons end"
            message = f"{_on_nodes(left)} {are(len(left))} given back: no container holds a slot there{ending}"
        return _verdict(ConditionType.DAEMONS_READY, False, ShareReason.DAEMON_NOT_READY, message)
    message = f"{_on_nodes(busy)} {are(len(busy))} given back once no container holds a slot there"
    if summary.share.whole:
        return _verdict(ConditionType.DAEMONS_READY, False, ShareReason.DRAINING, message)
    if busy.silent:
        return _unknown(ConditionType.DAEMONS_READY, f"{message}; {_silence(busy.silent)}")
    if unready:
        message = f"{message}; {len(unready)} of {count_of(len(busy), 'MPS daemon')} not ready; " + _daemon_line(
            _worst(unready)
        )
        return _verdict(ConditionType.DAEMONS_READY, False, ShareReason.DAEMON_NOT_READY, message)
    daemons = count_of(len(busy), "MPS daemon")
    message = f"{daemons} {are(len(busy))} kept for the clients that run, and for no others; {message}"
    return _verdict(ConditionType.DAEMONS_READY, False, ShareReason.DRAINING, message)


def limits_enforced(summary: ShareSummary) -> RefusalVerdict:
    gpus = summary.kept or _with_clients(summary)
    if not gpus:
        left = summary.held
        what = f"no container holds a slot on {_on_nodes(left)}" if left else "no GPU is assigned"
        message = f"{what}, so nothing is enforced"
        return _verdict(ConditionType.LIMITS_ENFORCED, False, ShareReason.LIMITS_PENDING, message)
    if summary.share.whole:
        return _whole_limits(summary, gpus)
    if not summary.kept:
        return _limits_until_they_end(summary, gpus)
    desired = summary.share.process_limits
    wanted = limits_key(desired)
    lost = gpus.where(lambda part: DaemonReason.GPU_LOST in part.reasons, _is_lost)
    if len(lost) == len(gpus):
        message = f"NVML reaches none of its GPUs: {_on_nodes(lost)}"
        return _verdict(ConditionType.LIMITS_ENFORCED, False, ShareReason.LIMITS_PENDING, message)
    gpus = gpus.where(lambda _: True, lambda record: not _is_lost(record))
    silent = gpus.silent
    pending = gpus.where(
        lambda part: not part.node.silence and part.limits != {wanted},
        lambda record: limits_key(record.current_limits) != wanted,
    )
    if not pending and (text := exceeded(summary)):
        return _verdict(ConditionType.LIMITS_ENFORCED, False, ShareReason.GRANTS_EXCEEDED, text)
    if not pending and silent:
        return _unknown(ConditionType.LIMITS_ENFORCED, _silence(silent))
    if not pending:
        message = f"{_limits(desired)} for new clients on {_on_nodes(gpus)}"
        if lost:
            message += f"; NVML does not reach {_on_nodes(lost)}"
        message += f"; {KEPT}"
        return _verdict(ConditionType.LIMITS_ENFORCED, True, ShareReason.LIMITS_IN_FORCE, message)
    first = next(iter(pending))
    now = _limits(first.current_limits) if first.current_limits else "nothing"
    message = f"wanted are {_limits(desired)}; {first} has {now} in force; {len(pending)} of {len(gpus)} wait; {KEPT}"
    return _verdict(ConditionType.LIMITS_ENFORCED, False, ShareReason.LIMITS_PENDING, message)


def _limits_until_they_end(summary: ShareSummary, gpus: HeldGpus) -> RefusalVerdict:
    """On GPUs that leave: what was wanted last stays in force, and what the spec says now concerns nobody there."""
    if text := exceeded(summary):
        return _verdict(ConditionType.LIMITS_ENFORCED, False, ShareReason.GRANTS_EXCEEDED, text)
    if gpus.silent:
        return _unknown(ConditionType.LIMITS_ENFORCED, _silence(gpus.silent))
    bare = gpus.where(lambda part: None in part.limits, lambda record: record.current_limits is None)
    if bare:
        message = f"{next(iter(bare))} has nothing in force; {len(bare)} of {len(gpus)} that are given back"
        return _verdict(ConditionType.LIMITS_ENFORCED, False, ShareReason.LIMITS_PENDING, message)
    message = f"for the clients that run on {_on_nodes(gpus)}: {KEPT}, until they end"
    return _verdict(ConditionType.LIMITS_ENFORCED, True, ShareReason.LIMITS_IN_FORCE, message)


def _whole_limits(summary: ShareSummary, gpus: HeldGpus) -> RefusalVerdict:
    """Nothing bounds the container that has a GPU whole; that nobody else is on it is all there is to hold."""
    if text := exceeded(summary):
        return _verdict(ConditionType.LIMITS_ENFORCED, False, ShareReason.GRANTS_EXCEEDED, text)
    message = f"a container has each of {_on_nodes(gpus)} for itself, so there is no limit to enforce"
    return _verdict(ConditionType.LIMITS_ENFORCED, True, ShareReason.LIMITS_IN_FORCE, message)


def departures_guarded(summary: ShareSummary) -> RefusalVerdict:
    """Tells whether an agent ends the clients of deleted pods in order, on each node where the share holds a GPU."""
    silent = summary.held.silent
    if silent:
        message = f"pods that are deleted on {_nodes(silent.nodes)} end unguarded; {_silence(silent)}"
        return _verdict(ConditionType.DEPARTURES_GUARDED, False, ShareReason.AGENT_SILENT, message)
    message = f"agents report on {_on_nodes(summary.held)}" if summary.held else "no GPU is held"
    return _verdict(ConditionType.DEPARTURES_GUARDED, True, ShareReason.DEPARTURES_GUARDED, message)


def writes_accepted(summary: ShareSummary) -> RefusalVerdict:
    """Of a share about which the API server refuses a write."""
    message = refused_sentences(summary.refused_writes)
    return _verdict(ConditionType.WRITES_ACCEPTED, False, ShareReason.WRITE_REFUSED, message)


def ready(summary: ShareSummary, parts: tuple[RefusalVerdict, ...]) -> RefusalVerdict:
    if summary.share.deleting:
        return _deleting(summary)
    for part in parts:
        # A client above its grant concerns the share's owner; the share itself works as specified.
        if part.status != "True" and part.reason is not ShareReason.GRANTS_EXCEEDED and not _is_changing(summary, part):
            if summary.refused_writes:
                message = f"{refused_sentences(summary.refused_writes)}; {part.reason}: {part.message}"
                return _verdict(ConditionType.READY, False, ShareReason.WRITE_REFUSED, message)
            return RefusalVerdict(ConditionType.READY, part.status, part.reason, part.message)
    message = parts[0].message
    slots, offered = summary.held.slots, summary.kept.verified * summary.share.slots_per_gpu
    if summary.kept and not summary.unready and slots > offered:
        message += f"; {count_of(slots, 'slot')} {are(slots)} held, and {offered} offered: those who have one keep it"
    return RefusalVerdict(ConditionType.READY, "True", ShareReason.READY, message[:MESSAGE_LENGTH])


def _is_changing(summary: ShareSummary, part: RefusalVerdict) -> bool:
    """Whether a share that was Ready only takes over other limits, which takes seconds and harms nobody."""
    until = summary.changing_until
    if part.status != "False" or summary.refused_writes or until is None or summary.now >= until:
        return False
    return part.reason is ShareReason.LIMITS_PENDING or part.type == ConditionType.DAEMONS_READY


def _deleting(summary: ShareSummary) -> RefusalVerdict:
    if summary.refused_writes:
        message = f"{refused_sentences(summary.refused_writes)}; the share is being deleted"
        return _verdict(ConditionType.READY, False, ShareReason.WRITE_REFUSED, message)
    occupied = summary.held.where(lambda part: part.slots > 0, lambda record: bool(record.slots))
    if occupied:
        slots = occupied.slots
        held = f"{count_of(slots, 'slot')} on {_on_nodes(occupied)} {are(slots)} held"
        message = f"{held}; waiting for {awaited(occupied)}"
        expired = occupied.where(
            lambda _: True, lambda record: record.assignment is not None and record.assignment.terminate_clients
        )
        if expired:
            message += f"; maxWait is over, so CUDA clients on {_on_nodes(expired)} are ended: delete pods that stay"
        return _verdict(ConditionType.READY, False, ShareReason.DRAINING, message)
    if not summary.held:
        message = f"no GPU is held any more; {_waits_for(summary.share.metadata.finalizers)}"
        return _verdict(ConditionType.READY, False, ShareReason.RELEASING, message)
    message = f"no container holds a slot; waiting for the agent to release {_on_nodes(summary.held)}"
    unready = sorted({record.node.name for record in summary.held if not record.node.ready})
    if unready:
        message += f"; {_nodes(unready)} not Ready: delete the Node object if it is gone for good"
    elif silent := summary.held.silent:
        message += f"; {_silence(silent)}"
    return _verdict(ConditionType.READY, False, ShareReason.RELEASING, message)


def _waits_for(finalizers: Iterable[str]) -> str:
    """What the share itself is still there for, once all that it had has been given back."""
    others = [finalizer for finalizer in finalizers if finalizer != FINALIZER]
    if FOREGROUND in others:
        return (
            "it is deleted in the foreground, and Kubernetes waits for objects that name it as their owner with "
            "blockOwnerDeletion, as a tenant's may: delete them"
        )
    return f"its finalizers {', '.join(others)} are not gpushare's: ask who set them" if others else "the share goes"


def _problems(summary: ShareSummary) -> list[str]:
    """One sentence per reason. What perNode leaves out is intended, so it is no problem."""
    return [
        f"{refused.count} {reason}: {refused.message}"
        for reason, refused in sorted(summary.refused_gpus.items())
        if reason is not GpuReason.PER_NODE_REACHED
    ]


def _leaving(summary: ShareSummary) -> list[str]:
    leaving = summary.leaving
    return [f"{_on_nodes(leaving)} {are(len(leaving))} leaving once idle"] if leaving else []


def _nothing_matches(summary: ShareSummary) -> str:
    if summary.no_product:
        return summary.no_product
    if summary.silent:
        names = _nodes(sorted(node.name for node in summary.silent))
        return f"{names} selected, but no agent reports a GPU there: look at the agent's pod on it"
    return summary.no_node


def _with_clients(summary: ShareSummary) -> HeldGpus:
    """The GPUs on which containers hold slots, also those that are given back: their daemons serve until these end."""
    return summary.held.where(lambda part: bool(part.slots), lambda record: bool(record.slots))


def _is_lost(record: GpuRecord) -> bool:
    return record.daemon is not None and record.daemon.reason == DaemonReason.GPU_LOST


def _is_full(record: GpuRecord) -> bool:
    return record.daemon is not None and record.daemon.reason == DaemonReason.CLIENT_TABLE_FULL


def _daemon_line(record: GpuRecord) -> str:
    daemon = record.daemon
    if record.gpu is not None and record.gpu.lost:
        return f"{record}: GpuLost: NVML does not reach it any more; see the node's kernel log for its Xid"
    if daemon is None:
        return f"{record}: Pending: the agent of node {record.node.name} has not taken it up yet; look at its pod there"
    line = f"{record}: {daemon.reason or DaemonReason.PENDING}"
    if daemon.message or daemon.resource:
        return f"{line}: {daemon.message}"
    return f"{line}: look at its MPS pod (label gpushare.dev/share={daemon.share})"


def _pod_line(summary: ShareSummary, record: GpuRecord) -> str:
    """What is wrong with the MPS pod of a GPU, as Kubernetes says it, or that there is none."""
    if summary.share.whole:
        return ""
    entry = next((entry for entry in summary.rollout.entries if entry.node.name == record.node.name), None)
    if entry is not None and entry.pod is not None:
        return f"; MPS pod {entry.pod.name}: {entry.pod.trouble}" if entry.pod.trouble else ""
    reason = record.daemon.reason if record.daemon is not None else ""
    if reason not in ("", DaemonReason.PENDING, DaemonReason.SUPERVISOR_SILENT):
        return ""
    return "; it has no MPS pod yet; if that stays, kubectl gpushare check says why"


def _worst(records: HeldGpus) -> GpuRecord:
    return min(records, key=_severity)


def _severity(record: GpuRecord) -> int:
    if record.daemon is None:
        return len(SEVERITY)
    try:
        return SEVERITY.index(DaemonReason(record.daemon.reason))
    except ValueError:
        return 0  # a newer agent's reason that we do not know comes first rather than last


def _silence(silent: HeldGpus) -> str:
    """The silence of the first of these nodes, by name."""
    node = min((part.node for part in silent.parts), key=lambda node: node.name)
    return f"node {node.name}: {node.silence}"


def _limits(value: Limits) -> str:
    return f"{value.threads}% of the SMs and {value.memory_mib}Mi per process"


def _verdict(kind: ConditionType, holds: bool, reason: ShareReason, message: str) -> RefusalVerdict:
    return RefusalVerdict(kind, "True" if holds else "False", reason, message[:MESSAGE_LENGTH])


def _unknown(kind: ConditionType, message: str) -> RefusalVerdict:
    return RefusalVerdict(kind, "Unknown", ShareReason.AGENT_SILENT, message[:MESSAGE_LENGTH])


def _on_nodes(gpus: HeldGpus) -> str:
    return f"{count_of(len(gpus), 'GPU')} of {_nodes(gpus.nodes)}"


def _nodes(names: Iterable[str]) -> str:
    return named("node", list(names), NAMES_SHOWN)
