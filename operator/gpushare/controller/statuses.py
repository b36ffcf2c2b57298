"""A share's status as it is written: conditions keep their time as long as their status stays the same."""

from collections.abc import Mapping

from gpushare.api import names
from gpushare.api.conditions import ConditionType, ShareReason
from gpushare.api.meta import Condition
from gpushare.controller.writes import Note, Write, WriteStage
from gpushare.fleet import RefusalVerdict, ShareReport
from gpushare.kube.client import GPU_SHARES, Object

AS_WISHED = (
    ShareReason.DRAINING,
    ShareReason.RELEASING,
    ShareReason.WAITING_FOR_CLIENTS,
    ShareReason.ROLLING_OUT,
)
"""Reasons for a condition that is not True though nothing is wrong."""


def status_write(live: Object, report: ShareReport, now: str, manager: str) -> Write | None:
    """The write that makes the live status say what `report` says, or None when it does already."""
    known = live.get("status") or {}
    before = {item["type"]: item for item in known.get("conditions") or []}
    conditions = [_condition(verdict, before, report.counts.observed_generation, now) for verdict in report.verdicts]
    status = report.counts.model_copy(update={"conditions": conditions}).wire()
    if status == known:
        return None
    name = live["metadata"]["name"]
    # Without the uid an apply that comes late would tell of another share of the same name.
    metadata = {"name": name, "uid": live["metadata"]["uid"]}
    body = {"apiVersion": names.API_VERSION, "kind": "GpuShare", "metadata": metadata, "status": status}
    return Write(
        WriteStage.TELL,
        "apply",
        GPU_SHARES,
        name,
        body,
        subresource="status",
        manager=manager,
        shares=frozenset([name]),
        notes=_notes(name, report.verdicts, before),
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
        Note(share, "Normal" if _as_wished(verdict) else "Warning", verdict.reason, "Reconcile", verdict.message)
        for verdict in verdicts
        if before.get(verdict.type, {}).get("reason") != verdict.reason and _told(verdict, before)
    )


def _told(verdict: RefusalVerdict, before: Mapping[str, Object]) -> bool:
    if verdict.type is ConditionType.DAEMONS_CURRENT:
        began_well = verdict.type not in before and verdict.status == "True"
        return verdict.reason is not ShareReason.RELEASING and not began_well
    return verdict.type is ConditionType.READY


def _as_wished(verdict: RefusalVerdict) -> bool:
    return verdict.status == "True" or verdict.reason in AS_WISHED
