"""What differs between the fleet as planned and as it is: the writes that close the gap, and no others.

Pure: the live objects are compared, never asked for. A fleet that is as planned gives no writes.
"""

from collections.abc import Iterable, Mapping
from typing import Literal

from gpushare.api import names
from gpushare.api.conditions import EventReason
from gpushare.api.gpunode import Assignment
from gpushare.api.gpushare import GpuShare
from gpushare.controller.claim_differences import claim_writes, shares_with_objects
from gpushare.controller.daemonset import RENDERED, daemon_set
from gpushare.controller.fleet_cache import FleetCache
from gpushare.controller.settings import OperatorSettings
from gpushare.controller.statuses import status_write
from gpushare.controller.writes import Note, Write, WriteStage
from gpushare.fleet import FleetPlan, Snapshot
from gpushare.kube.client import DAEMON_SETS, GPU_NODES, GPU_SHARES, NODES, PODS, Object

MANAGER = "gpushare-operator"
FINALIZER_MANAGER = "gpushare-operator-finalizer"
"""A manager of its own: applying without the finalizer removes it, and must remove nothing else."""


MOVES = {
    EventReason.GPU_ASSIGNED: "this share now has",
    EventReason.GPU_DRAINING: "once no container holds a slot, this share gives back",
    EventReason.GPU_RELEASED: "this share has given back",
    EventReason.MAX_WAIT_EXPIRED: "maxWait is over; for the change that waits, clients are ended on",
}
"""Reasons of events about a GPU, and how they are told."""


def differences(
    plan: FleetPlan, snapshot: Snapshot, world: FleetCache, settings: OperatorSettings, now: str
) -> list[Write]:
    """`now`: RFC 3339, for conditions whose status changes. Ordered by stage."""
    shares = {share.name: share for share in snapshot.shares}
    writes = [
        *_finalizers(plan, shares, world),
        *claim_writes(() if snapshot.no_claims else snapshot.shares, world.claims, settings),
        *_daemon_sets(plan, shares, world, settings),
        *_labels(plan, world),
        *_assignments(plan, world),
        *_replacements(plan, settings),
        *_statuses(plan, world, now),
    ]
    return sorted(writes, key=lambda write: (write.stage, write.name))


def _finalizers(plan: FleetPlan, shares: Mapping[str, GpuShare], world: FleetCache) -> Iterable[Write]:
    for name in plan.finalizers:
        yield _finalizer(shares[name], WriteStage.HOLD, [names.FINALIZER])
    for name in plan.released - _with_daemon_set(world) - _with_label(world) - shares_with_objects(world.claims):
        if shares[name].by_claims and world.claims.followed and not world.claims.known:
            continue  # its classes may be there
        yield _finalizer(shares[name], WriteStage.RELEASE, [])


def _with_daemon_set(world: FleetCache) -> set[str]:
    labels = (known["metadata"].get("labels") or {} for known in world.all(DAEMON_SETS).values())
    return {item[names.LABEL_SHARE] for item in labels if names.LABEL_SHARE in item}


def _with_label(world: FleetCache) -> set[str]:
    labels = (key for node in world.all(NODES).values() for key in node["metadata"].get("labels") or {})
    return {key.removeprefix(names.NODE_LABEL_PREFIX) for key in labels if key.startswith(names.NODE_LABEL_PREFIX)}


def _finalizer(share: GpuShare, stage: WriteStage, finalizers: list[str]) -> Write:
    """With the uid, so that an apply that comes late cannot create the share again."""
    body: Object = {
        "apiVersion": names.API_VERSION,
        "kind": "GpuShare",
        "metadata": {"name": share.name, "uid": share.metadata.uid, "finalizers": finalizers},
    }
    return Write(
        stage, "apply", GPU_SHARES, share.name, body, manager=FINALIZER_MANAGER, shares=frozenset([share.name])
    )


def _daemon_sets(
    plan: FleetPlan, shares: Mapping[str, GpuShare], world: FleetCache, settings: OperatorSettings
) -> Iterable[Write]:
    """A live share keeps its DaemonSet: one made again by that name gets no pod while an old one still ends."""
    live = world.all(DAEMON_SETS)
    rendered = {share: daemon_set(shares[share], settings) for share in plan.daemon_sets & shares.keys()}
    kept = {
        names.daemonset_name(name, share.metadata.uid) for name, share in shares.items() if name not in plan.released
    }
    for share, body in rendered.items():
        name = body["metadata"]["name"]
        present = live.get(name)
        if present is None or _rendered(present) != _rendered(body) or world.touched(DAEMON_SETS, present):
            yield _daemon_set_write(WriteStage.RUN, "apply", name, body, share, settings)
    for name, known in live.items():
        owner = (known["metadata"].get("labels") or {}).get(names.LABEL_SHARE)
        if owner and name not in kept and not known["metadata"].get("deletionTimestamp"):
            yield _daemon_set_write(WriteStage.STOP, "delete", name, {}, owner, settings)


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


def _rendered(obj: Object) -> str:
    return str((obj["metadata"].get("annotations") or {}).get(RENDERED, ""))


def _labels(plan: FleetPlan, world: FleetCache) -> Iterable[Write]:
    for node, shares in plan.labels.items():
        known = world.get(NODES, node)
        if known is None:
            continue
        labels = known["metadata"].get("labels") or {}
        present = {key for key in labels if key.startswith(names.NODE_LABEL_PREFIX)}
        wanted = {names.node_label(share) for share in shares}
        patch: dict[str, str | None] = {key: "true" for key in wanted if labels.get(key) != "true"}
        patch |= dict.fromkeys(present - wanted)
        if patch:
            concerned = frozenset(key.removeprefix(names.NODE_LABEL_PREFIX) for key in patch)
            # Taking a label away ends a pod, so it belongs to the end of a share, not to its beginning.
            stage = WriteStage.LABEL if any(patch.values()) else WriteStage.STOP
            body = {"metadata": {"labels": patch}}
            yield Write(stage, "merge", NODES, node, body, manager=MANAGER, shares=concerned)


def _assignments(plan: FleetPlan, world: FleetCache) -> Iterable[Write]:
    for node, wanted in plan.assignments.items():
        known = world.get(GPU_NODES, node)
        if known is None:
            continue
        listed = (known.get("spec") or {}).get("assignments")
        before = None if listed is None else {item["uuid"]: Assignment.model_validate(item) for item in listed}
        after = {item.uuid: item for item in wanted}
        if before == after:
            continue
        body = {"spec": {"assignments": [_assignment(item) for item in wanted]}}
        notes = tuple(_moves(node, before or {}, after))
        yield Write(WriteStage.ASSIGN, "merge", GPU_NODES, node, body, manager=MANAGER, notes=notes)


def _assignment(item: Assignment) -> Object:
    return item.model_dump(by_alias=True, exclude_defaults=True, mode="json")


def _replacements(plan: FleetPlan, settings: OperatorSettings) -> Iterable[Write]:
    """Deleted rather than evicted: an eviction would ask budgets that know nothing of the clients that we wait for."""
    for pod in plan.replaced:
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
        if new and (old is None or new.share != old.share):
            moved.setdefault((new.share, EventReason.GPU_ASSIGNED), []).append(uuid)
        elif new and old and new.draining and not old.draining:
            moved.setdefault((new.share, EventReason.GPU_DRAINING), []).append(uuid)
        if new and new.end_clients and not (old and old.end_clients):
            moved.setdefault((new.share, EventReason.MAX_WAIT_EXPIRED), []).append(uuid)
    for (share, reason), uuids in sorted(moved.items()):
        kind: Literal["Normal", "Warning"] = "Warning" if reason is EventReason.MAX_WAIT_EXPIRED else "Normal"
        yield Note(share, kind, reason, "Assign", f"node {node}: {MOVES[reason]} {', '.join(uuids)}")


def _statuses(plan: FleetPlan, world: FleetCache, now: str) -> Iterable[Write]:
    for name, report in plan.reports.items():
        known = world.get(GPU_SHARES, name)
        if known is not None and name not in plan.released:
            write = status_write(known, report, now, MANAGER)
            if write is not None:
                yield write
