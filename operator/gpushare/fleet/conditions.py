"""A share's conditions: what is the case, and what to do about it.

Each function answers for one condition; `Ready` is the first of them that is not True, but for a client above its
grant, and while a share is being deleted it tells what that waits for.
"""

from collections.abc import Iterable

from gpushare.api.conditions import ConditionType, DaemonReason, GpuReason, ShareReason
from gpushare.api.gpunode import Limits
from gpushare.fleet.current import daemons_current
from gpushare.fleet.exceeded import exceeded
from gpushare.fleet.gpu_record import GpuRecord
from gpushare.fleet.model import RefusalVerdict
from gpushare.fleet.share_summary import ShareSummary
from gpushare.fleet.waiting import for_whom

NAMES_TOLD = 3
MESSAGE_LENGTH = 2048
"""Bound of the API on a condition's message."""

SEVERITY = (
    DaemonReason.GPU_LOST,
    DaemonReason.DAEMON_FAILED,
    DaemonReason.GPU_HELD_BY_FOREIGN_PROCESS,
    DaemonReason.NOFILE_TOO_LOW,
    DaemonReason.CONTROL_TIMEOUT,
    DaemonReason.SUPERVISOR_SILENT,
    DaemonReason.FAULTED,
    DaemonReason.SERVER_LET_GO,
    DaemonReason.SERVER_NOT_ACTIVE,
    DaemonReason.LIMITS_NOT_IN_FORCE,
    DaemonReason.STOPPING,
    DaemonReason.STARTING,
    DaemonReason.PENDING,
)
"""Worst first: of several daemons that are not ready, this one's message is carried."""


def verdicts(standing: ShareSummary) -> tuple[RefusalVerdict, ...]:
    """Ready, GpusAssigned, DaemonsReady, LimitsEnforced, DaemonsCurrent, in this order.

    Ready does not depend on the last: an outdated daemon serves as well as before.
    """
    parts = (gpus_assigned(standing), daemons_ready(standing), limits_enforced(standing))
    return (ready(standing, parts), *parts, daemons_current(standing))


def gpus_assigned(standing: ShareSummary) -> RefusalVerdict:
    if standing.undeliverable:
        message = f'delivery "ResourceClaim": {standing.undeliverable}; use delivery "DevicePlugin"'
        return _verdict(ConditionType.GPUS_ASSIGNED, False, ShareReason.DELIVERY_UNSUPPORTED, message)
    if standing.share.deleting:
        held = standing.held
        message = f"{_on_nodes(held)} {_are(held)} being given back" if held else "no GPU is held any more"
        return _verdict(ConditionType.GPUS_ASSIGNED, False, ShareReason.RELEASING, message)
    problems, leaving = _problems(standing), _leaving(standing)
    if standing.kept:
        reason = ShareReason.SOME_GPUS_UNAVAILABLE if problems else ShareReason.ASSIGNED
        message = "; ".join([f"{_on_nodes(standing.kept)} {_are(standing.kept)} assigned", *leaving, *problems])
        return _verdict(ConditionType.GPUS_ASSIGNED, True, reason, message)
    if standing.matching == 0:
        message = "; ".join([_nothing_matches(standing), *leaving])
        return _verdict(ConditionType.GPUS_ASSIGNED, False, ShareReason.NO_MATCHING_NODES, message)
    message = "; ".join([f"none of {_count(standing.matching, 'matching GPU')} can be taken", *leaving, *problems])
    return _verdict(ConditionType.GPUS_ASSIGNED, False, ShareReason.GPUS_UNAVAILABLE, message)


def daemons_ready(standing: ShareSummary) -> RefusalVerdict:
    kept = standing.kept
    if not kept:
        return _verdict(
            ConditionType.DAEMONS_READY, False, ShareReason.DAEMON_NOT_READY, "no GPU is assigned, so no daemon runs"
        )
    unready = [place for place in kept if place.daemon is None or not place.daemon.ready]
    if not unready:
        message = f"{_count(len(kept), 'MPS daemon')} verified: server ACTIVE, limits in force"
        full = [place for place in kept if place.daemon and place.daemon.reason == DaemonReason.CLIENT_TABLE_FULL]
        if full:
            message += f"; {len(full)} with no room for another client; {_daemon_line(full[0])}"
        return _verdict(ConditionType.DAEMONS_READY, True, ShareReason.DAEMONS_READY, message)
    worst = min(unready, key=_severity)
    message = f"{len(unready)} of {_count(len(kept), 'MPS daemon')} not ready; {_daemon_line(worst)}"
    return _verdict(ConditionType.DAEMONS_READY, False, ShareReason.DAEMON_NOT_READY, message)


def limits_enforced(standing: ShareSummary) -> RefusalVerdict:
    if not standing.kept:
        message = "no GPU is assigned, so nothing is enforced"
        return _verdict(ConditionType.LIMITS_ENFORCED, False, ShareReason.LIMITS_PENDING, message)
    wanted = standing.share.process_limits
    pending = [place for place in standing.kept if place.daemon is None or place.daemon.in_force != wanted]
    if not pending and (found := exceeded(standing)):
        return _verdict(ConditionType.LIMITS_ENFORCED, False, ShareReason.GRANTS_EXCEEDED, found)
    if not pending:
        message = f"{_limits(wanted)} on {_on_nodes(standing.kept)}"
        return _verdict(ConditionType.LIMITS_ENFORCED, True, ShareReason.LIMITS_IN_FORCE, message)
    first = pending[0]
    now = _limits(first.daemon.in_force) if first.daemon and first.daemon.in_force else "nothing"
    message = f"wanted are {_limits(wanted)}; {first} has {now} in force; {len(pending)} of {len(standing.kept)} wait"
    return _verdict(ConditionType.LIMITS_ENFORCED, False, ShareReason.LIMITS_PENDING, message)


def ready(standing: ShareSummary, parts: tuple[RefusalVerdict, ...]) -> RefusalVerdict:
    if standing.share.deleting:
        return _going(standing)
    for part in parts:
        # A client above its grant is the share's owner's concern; the share itself works as it was asked to.
        if part.status != "True" and part.reason is not ShareReason.GRANTS_EXCEEDED:
            return RefusalVerdict(ConditionType.READY, "False", part.reason, part.message)
    assigned = parts[0]
    return RefusalVerdict(ConditionType.READY, "True", ShareReason.READY, assigned.message)


def _going(standing: ShareSummary) -> RefusalVerdict:
    occupied = [place for place in standing.held if place.slots]
    if occupied:
        slots = sum(len(place.slots) for place in occupied)
        verb = "is" if slots == 1 else "are"
        message = (
            f"{_count(slots, 'slot')} on {_on_nodes(occupied)} {verb} held; waiting for {for_whom(occupied)} to end"
        )
        expired = [place for place in occupied if place.assignment is not None and place.assignment.end_clients]
        if expired:
            message += f"; maxWait is over, so CUDA clients on {_on_nodes(expired)} are ended: delete pods that stay"
        return _verdict(ConditionType.READY, False, ShareReason.DRAINING, message)
    if not standing.held:
        message = "no GPU is held any more; the share goes"
        return _verdict(ConditionType.READY, False, ShareReason.RELEASING, message)
    message = f"no container holds a slot; waiting for the agent to release {_on_nodes(standing.held)}"
    unready = sorted({place.node.name for place in standing.held if not place.node.ready})
    if unready:
        message += f"; {_nodes(unready)} not Ready: delete the Node object if it is gone for good"
    return _verdict(ConditionType.READY, False, ShareReason.RELEASING, message)


def _problems(standing: ShareSummary) -> list[str]:
    """One sentence per reason; what perNode leaves out is as wished and no problem."""
    groups: dict[GpuReason, list[str]] = {}
    for refusal in standing.refused:
        if refusal.reason is not GpuReason.OVER_PER_NODE:
            groups.setdefault(refusal.reason, []).append(refusal.message)
    return [f"{len(messages)} {reason}: {messages[0]}" for reason, messages in sorted(groups.items())]


def _leaving(standing: ShareSummary) -> list[str]:
    leaving = [*standing.draining, *standing.releasing]
    return [f"{_on_nodes(leaving)} {_are(leaving)} leaving once idle"] if leaving else []


def _nothing_matches(standing: ShareSummary) -> str:
    if standing.mismatched:
        count = _count(len(standing.mismatched), "GPU")
        return f"{count} on the selected nodes, but none of the wanted product: {standing.mismatched[0].message}"
    if standing.silent:
        names = _nodes(sorted(node.name for node in standing.silent))
        return f"{names} selected, but no agent tells of a GPU there: look at the agent's pod on it"
    return "spec.nodeSelector matches no node with GPUs"


def _daemon_line(place: GpuRecord) -> str:
    daemon = place.daemon
    if place.gpu is not None and place.gpu.lost:
        return f"{place}: GpuLost: NVML does not reach it any more; see the node's kernel log for its Xid"
    if daemon is None:
        return f"{place}: Pending: the agent of node {place.node.name} has not taken it up yet; look at its pod there"
    line = f"{place}: {daemon.reason or DaemonReason.PENDING}"
    if daemon.message:
        return f"{line}: {daemon.message}"
    return f"{line}: look at its MPS pod (label gpushare.dev/share={daemon.share})"


def _severity(place: GpuRecord) -> int:
    if place.daemon is None:
        return len(SEVERITY)
    try:
        return SEVERITY.index(DaemonReason(place.daemon.reason))
    except ValueError:
        return 0  # an agent newer than we: a reason that we do not know is told rather than hidden


def _limits(value: Limits) -> str:
    below = ", priority BelowNormal" if value.priority else ""
    return f"{value.threads}% of the SMs and {value.memory_mib}Mi per process{below}"


def _verdict(kind: ConditionType, holds: bool, reason: ShareReason, message: str) -> RefusalVerdict:
    return RefusalVerdict(kind, "True" if holds else "False", reason, message[:MESSAGE_LENGTH])


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _are(places: list[GpuRecord]) -> str:
    return "is" if len(places) == 1 else "are"


def _on_nodes(places: list[GpuRecord]) -> str:
    return f"{_count(len(places), 'GPU')} of {_nodes(sorted({place.node.name for place in places}))}"


def _nodes(names: Iterable[str]) -> str:
    listed = list(names)
    shown = ", ".join(listed[:NAMES_TOLD])
    more = f" and {len(listed) - NAMES_TOLD} more" if len(listed) > NAMES_TOLD else ""
    return f"node{'' if len(listed) == 1 else 's'} {shown}{more}"
