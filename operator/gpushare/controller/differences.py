"""The writes that turn the current fleet into the planned one, and no others. Pure.

Guarantees: only the cache is compared, nothing is requested; a fleet that matches its plan gives no writes. A
condition keeps its time as long as its status stays the same. A write names the resourceVersion that its object had in
the plan's snapshot. A deletion cannot; so nothing of a share is ended about which a write was unanswered when the
snapshot was taken, or about which another one is planned.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Literal

from gpushare.api import names
from gpushare.api.conditions import ConditionType, EventReason, ShareReason
from gpushare.api.gpunode import Assignment
from gpushare.api.gpushare import GpuShare
from gpushare.api.meta import Condition
from gpushare.controller.cache.fleet_cache import FleetCache, KnownShare, Versions
from gpushare.controller.claims.differences import claim_writes, shares_with_classes
from gpushare.controller.daemonset import daemon_set
from gpushare.controller.settings import OperatorSettings
from gpushare.controller.writes import MANAGER, Note, Write, WriteStage, stamp_of
from gpushare.kube.client import DAEMON_SETS, GPU_NODES, GPU_SHARES, NODES, PODS, Object
from gpushare.planner import FleetPlan, RefusalVerdict, ShareReport, Snapshot

FINALIZER_MANAGER = "gpushare-operator-finalizer"
"""A manager of its own: applying without the finalizer removes it, and must remove nothing else."""
NO_VERSIONS: Versions = MappingProxyType({})

MOVES = {
    EventReason.GPU_ASSIGNED: "this share now has",
    EventReason.GPU_DRAINING: "once no container holds a slot, this share gives back",
    EventReason.GPU_RELEASED: "this share has given back",
    EventReason.MAX_WAIT_EXPIRED: "maxWait is over; for the change that waits, clients are ended on",
}
"""Reasons of events about a GPU, and their texts."""
NOT_A_PROBLEM = (
    ShareReason.DRAINING,
    ShareReason.RELEASING,
    ShareReason.WAITING_FOR_CLIENTS,
    ShareReason.ROLLING_OUT,
    ShareReason.DAEMONS_STARTING,
)
"""Reasons for a condition that is not True though nothing is wrong."""


def differences(
    plan: FleetPlan,
    snapshot: Snapshot,
    cache: FleetCache,
    settings: OperatorSettings,
    now: str,
    versions: Versions = NO_VERSIONS,
    unanswered: Collection[Write] = (),
) -> list[Write]:
    """The writes, ordered by stage. `now`: RFC 3339, for conditions whose status changes.

    `versions`, `unanswered`: the objects' versions, and the writes under way, when `snapshot` was taken.
    """
    shares = {share.name: share for share in snapshot.shares}
    busy = _shares_of(unanswered)
    writes = [
        *_finalizers(plan, shares, cache),
        *claim_writes(() if snapshot.no_claims else snapshot.shares, cache.claims, settings),
        *_daemon_sets(plan, shares, cache, settings, busy),
        *_labels(plan, cache),
        *_assignments(plan, cache),
        *_startup(plan, cache),
        *_replacements(plan, settings, unanswered),
    ]
    writes += _releases(plan, shares, cache, busy | _shares_of(writes))
    writes = [_versioned(write, versions) for write in writes]
    writes += _statuses(plan, cache, now)
    return sorted(writes, key=lambda write: (write.stage, write.name))


def _shares_of(writes: Iterable[Write]) -> frozenset[str]:
    return frozenset(share for write in writes if write.stage is not WriteStage.REPORT for share in write.shares)


def _versioned(write: Write, versions: Versions) -> Write:
    if write.verb not in ("apply", "merge"):
        return write
    version = versions.get(write.resource, {}).get((write.namespace or "", write.name))
    return replace(write, version=str(version)) if version else write


def _finalizers(plan: FleetPlan, shares: Mapping[str, GpuShare], cache: FleetCache) -> Iterable[Write]:
    for name in plan.finalizers:
        if not _has_finalizer(cache.shares.get(name)):  # the answer may have come while this was planned
            yield _hold(shares[name])


def _releases(
    plan: FleetPlan, shares: Mapping[str, GpuShare], cache: FleetCache, busy: frozenset[str]
) -> Iterable[Write]:
    if not plan.released:
        return
    kept = busy | _with_daemon_set(cache) | _with_label(cache) | shares_with_classes(cache.claims)
    for name in plan.released - kept:
        if shares[name].by_claims and cache.claims.followed and not cache.claims.known:
            continue  # its classes may be there
        yield _release(shares[name])


def _has_finalizer(known: KnownShare | None) -> bool:
    return known is not None and known.share is not None and names.FINALIZER in known.share.metadata.finalizers


def _with_daemon_set(cache: FleetCache) -> set[str]:
    return {known.share for known in cache.daemon_sets.objects.values() if known.share}


def _with_label(cache: FleetCache) -> set[str]:
    labels = (key for node in cache.nodes.objects.values() for key in node.share_labels)
    return {key.removeprefix(names.NODE_LABEL_PREFIX) for key in labels}


def _hold(share: GpuShare) -> Write:
    """The body has the uid, so that an apply that arrives late cannot create the share again."""
    body: Object = {
        "apiVersion": names.API_VERSION,
        "kind": "GpuShare",
        "metadata": {"name": share.name, "uid": share.metadata.uid, "finalizers": [names.FINALIZER]},
    }
    shares = frozenset([share.name])
    return Write(WriteStage.HOLD, "apply", GPU_SHARES, share.name, body, manager=FINALIZER_MANAGER, shares=shares)


def _release(share: GpuShare) -> Write:
    """An apply would remove only what the same manager applied, and a share that was restored from a copy came with its
    finalizer; so this is a JSON patch. It is refused where the share, or its list, is another one by then.
    """
    place = f"/metadata/finalizers/{share.metadata.finalizers.index(names.FINALIZER)}"
    operations: tuple[Object, ...] = (
        {"op": "test", "path": "/metadata/uid", "value": share.metadata.uid},
        {"op": "test", "path": place, "value": names.FINALIZER},
        {"op": "remove", "path": place},
    )
    return Write(
        WriteStage.RELEASE,
        "json",
        GPU_SHARES,
        share.name,
        {},
        operations=operations,
        manager=FINALIZER_MANAGER,
        shares=frozenset([share.name]),
    )


def _daemon_sets(
    plan: FleetPlan,
    shares: Mapping[str, GpuShare],
    cache: FleetCache,
    settings: OperatorSettings,
    busy: frozenset[str],
) -> Iterable[Write]:
    """A live share keeps its DaemonSet: one made again by that name gets no pod while an old one still ends."""
    current = {name: known for (_, name), known in cache.daemon_sets.objects.items()}
    desired = {share: daemon_set(shares[share], settings) for share in plan.daemon_sets & shares.keys()}
    kept = {
        names.daemonset_name(name, share.metadata.uid) for name, share in shares.items() if name not in plan.released
    }
    for share, body in desired.items():
        name = body["metadata"]["name"]
        known = current.get(name)
        if known is None or known.rendered != stamp_of(body) or not cache.is_as_applied(name, known):
            yield _daemon_set_write(WriteStage.RUN, "apply", name, body, share, settings)
    still_used = plan.daemon_sets - shares.keys()
    for name, known in current.items():
        if known.share in still_used:
            continue  # of a share that vanished: its end is the end of the clients that run still
        if known.share and name not in kept and not known.deleting and known.share not in busy:
            yield _daemon_set_write(WriteStage.STOP, "delete", name, {}, known.share, settings)


def _daemon_set_write(
    stage: WriteStage, verb: str, name: str, body: Object, share: str, settings: OperatorSettings
) -> Write:
    return Write(
        stage,
        "apply" if verb == "apply" else "delete",
        DAEMON_SETS,
        name,
        body,
        namespace=settings.namespace,
        manager=MANAGER,
        shares=frozenset([share]),
    )


def _labels(plan: FleetPlan, cache: FleetCache) -> Iterable[Write]:
    for node, shares in plan.labels.items():
        known = cache.nodes.get(node)
        if known is None:
            continue
        current = known.share_labels
        desired = {names.node_label(share) for share in shares}
        added = {key: "true" for key in desired if known.labels.get(key) != "true"}
        patch: dict[str, str | None] = {**added, **dict.fromkeys(current - desired)}
        concerned = frozenset(key.removeprefix(names.NODE_LABEL_PREFIX) for key in patch)
        if (node in plan.without_agent) is not known.without_agent:
            patch[names.LABEL_DRIVER_RELEASED] = "true" if node in plan.without_agent else None
        if patch:
            # Taking a share's label away ends a pod, so it belongs to the end of a share, not to its beginning.
            stage = WriteStage.LABEL if added else WriteStage.STOP
            body = {"metadata": {"labels": patch}}
            yield Write(stage, "merge", NODES, node, body, manager=MANAGER, shares=concerned)


def _assignments(plan: FleetPlan, cache: FleetCache) -> Iterable[Write]:
    for node, desired in plan.assignments.items():
        known = cache.gpu_nodes.get(node)
        if known is None:
            continue
        current = known.spec.assignments
        if current is not None and tuple(current) == desired:
            continue
        before = None if current is None else {item.uuid: item for item in current}
        after = {item.uuid: item for item in desired}
        if before == after:
            continue
        body = {"spec": {"assignments": [_assignment(item) for item in desired]}}
        notes = tuple(_moves(node, before or {}, after))
        shares = frozenset(item.share for item in desired)
        yield Write(WriteStage.ASSIGN, "merge", GPU_NODES, node, body, manager=MANAGER, shares=shares, notes=notes)


def _assignment(item: Assignment) -> Object:
    return item.model_dump(by_alias=True, exclude_defaults=True, mode="json")


def _startup(plan: FleetPlan, cache: FleetCache) -> Iterable[Write]:
    """A list of taints is replaced as a whole, and others write to it: the version that is named guards theirs."""
    for node in plan.started:
        known = cache.nodes.get(node)
        if known is not None and known.lasting_taints is not None:
            body = {"spec": {"taints": list(known.lasting_taints) or None}}
            yield Write(WriteStage.OPEN, "merge", NODES, node, body, manager=MANAGER)


def _replacements(plan: FleetPlan, settings: OperatorSettings, unanswered: Collection[Write]) -> Iterable[Write]:
    """Pods are deleted rather than evicted: disruption budgets know nothing of the clients that we wait for."""
    busy = {write.name for write in unanswered if write.resource in (NODES, GPU_NODES)}
    for pod in plan.replaced:
        if pod.node in busy:
            continue
        text = f"node {pod.node}: MPS pod {pod.name} makes way for one of the present image and settings"
        yield Write(
            WriteStage.REPLACE,
            "delete",
            PODS,
            pod.name,
            {},
            namespace=settings.namespace,
            uid=pod.uid,
            notes=(Note(pod.share, "Normal", EventReason.DAEMON_REPLACED, "Replace", text),),
        )


def _moves(node: str, before: Mapping[str, Assignment], after: Mapping[str, Assignment]) -> Iterable[Note]:
    """One note for each kind of change that a share sees on this node."""
    moved: dict[tuple[str, EventReason], list[str]] = {}
    for uuid in sorted({*before, *after}):
        old, new = before.get(uuid), after.get(uuid)
        if old and (new is None or new.share != old.share):
            moved.setdefault((old.share, EventReason.GPU_RELEASED), []).append(uuid)
        arrived = new is not None and (old is None or new.share != old.share)
        if new and new.draining and (arrived or not (old and old.draining)):
            moved.setdefault((new.share, EventReason.GPU_DRAINING), []).append(uuid)
        elif new and arrived:
            moved.setdefault((new.share, EventReason.GPU_ASSIGNED), []).append(uuid)
        if new and new.terminate_clients and not (old and old.terminate_clients):
            moved.setdefault((new.share, EventReason.MAX_WAIT_EXPIRED), []).append(uuid)
    for (share, reason), uuids in sorted(moved.items()):
        kind: Literal["Normal", "Warning"] = "Warning" if reason is EventReason.MAX_WAIT_EXPIRED else "Normal"
        yield Note(share, kind, reason, "Assign", f"node {node}: {MOVES[reason]} {', '.join(uuids)}")


def _statuses(plan: FleetPlan, cache: FleetCache, now: str) -> Iterable[Write]:
    for name, report in plan.reports.items():
        known = cache.shares.get(name)
        if known is not None and name not in plan.released:
            write = _status_write(known, report, now)
            if write is not None:
                yield write


def _status_write(known: KnownShare, report: ShareReport, now: str) -> Write | None:
    """Returns None where the status is as reported already."""
    before = {item["type"]: item for item in known.status.get("conditions") or []}
    conditions = [_condition(verdict, before, report.counts.observed_generation, now) for verdict in report.verdicts]
    status = report.counts.model_copy(update={"conditions": conditions}).wire()
    if status == known.status:
        return None
    # Without the uid an apply that arrives late would change another share of the same name.
    metadata = {"name": known.name, "uid": known.uid}
    body = {"apiVersion": names.API_VERSION, "kind": "GpuShare", "metadata": metadata, "status": status}
    return Write(
        WriteStage.REPORT,
        "apply",
        GPU_SHARES,
        known.name,
        body,
        subresource="status",
        manager=MANAGER,
        shares=frozenset([known.name]),
        notes=_notes(known.name, report.verdicts, before),
    )


def _condition(verdict: RefusalVerdict, before: Mapping[str, Object], generation: int, now: str) -> Condition:
    old = before.get(verdict.type, {})
    since = old.get("lastTransitionTime") if old.get("status") == verdict.status else None
    return Condition(
        type=verdict.type,
        status=verdict.status,
        reason=verdict.reason,
        message=verdict.message,
        last_transition_time=since or now,
        observed_generation=generation,
    )


def _notes(share: str, verdicts: tuple[RefusalVerdict, ...], before: Mapping[str, Object]) -> tuple[Note, ...]:
    """One event whenever the reason of Ready changes, or that of DaemonsCurrent while the share lives."""
    return tuple(
        Note(share, "Normal" if _is_normal(verdict) else "Warning", verdict.reason, "Reconcile", verdict.message)
        for verdict in verdicts
        if before.get(verdict.type, {}).get("reason") != verdict.reason and _is_announced(verdict, before)
    )


def _is_announced(verdict: RefusalVerdict, before: Mapping[str, Object]) -> bool:
    if verdict.type is ConditionType.DAEMONS_CURRENT:
        began_well = verdict.type not in before and verdict.status == "True"
        return verdict.reason is not ShareReason.RELEASING and not began_well
    return verdict.type is ConditionType.READY and verdict.reason is not ShareReason.WRITE_REFUSED  # told already


def _is_normal(verdict: RefusalVerdict) -> bool:
    return verdict.status == "True" or verdict.reason in NOT_A_PROBLEM
