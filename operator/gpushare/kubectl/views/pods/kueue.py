"""What Kueue says of a pod, or of what is to make pods. Pure.

Kueue holds a Job back by suspending it, so that there is no pod at all, and a pod by a scheduling gate. Either has a
Workload, which it owns, and which says in which queue it waits and why.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from gpushare.kube.pods import Pod
from gpushare.kube.resources import Object


@dataclass(frozen=True, slots=True)
class QueueHold:
    """`queue`: the LocalQueue; `message`: Kueue's own, where it has written one."""

    workload: str
    queue: str
    message: str


def workload_of(pod: Pod, workloads: Iterable[Object]) -> Object | None:
    """The Workload of the pod, or of the Job or other object that made it; None where no queue has it."""
    metadata = pod["metadata"]
    uids = {metadata.get("uid")} | {item.get("uid") for item in metadata.get("ownerReferences") or ()}
    return _newest(item for item in workloads if any(owner.get("uid") in uids for owner in _owners(item)))


def workload_named(workloads: Iterable[Object], is_it: Callable[[str], bool]) -> Object | None:
    """The Workload of an object whose name satisfies `is_it`, such as a Job which has no pod yet."""
    return _newest(
        workload for workload in workloads if any(is_it(str(owner.get("name"))) for owner in _owners(workload))
    )


def hold(workload: Object) -> QueueHold | None:
    """What holds the Workload back; None where Kueue lets it run, or it has finished."""
    if _is_true(workload, "Finished") or _is_true(workload, "Admitted"):
        return None
    queue = str((workload.get("spec") or {}).get("queueName") or "")
    return QueueHold(workload["metadata"]["name"], queue, _message(workload))


def eviction(workload: Object) -> str:
    """Why Kueue took back what it had let run; empty where it did not, or has let it run again."""
    return str(_condition(workload, "Evicted").get("message") or "") if _is_true(workload, "Evicted") else ""


def _message(workload: Object) -> str:
    if not _active(workload):
        evicted = eviction(workload)
        return f"it is deactivated (spec.active: false){f': {evicted}' if evicted else ''}"
    reserved = _condition(workload, "QuotaReserved")
    if not _is_true(workload, "QuotaReserved"):
        return str(reserved.get("message") or "") or "Kueue has not looked at it yet"
    checks = (workload.get("status") or {}).get("admissionChecks") or ()
    waits = [
        f"{check.get('name')} is {check.get('state')}: {check.get('message')}"
        for check in checks
        if check.get("state") != "Ready"
    ]
    return f"its quota is reserved, but not every admission check has passed: {'; '.join(waits)}".removesuffix(": ")


def _active(workload: Object) -> bool:
    return (workload.get("spec") or {}).get("active") is not False


def _condition(workload: Object, kind: str) -> dict[str, Any]:
    conditions = (workload.get("status") or {}).get("conditions") or ()
    return next((item for item in conditions if item.get("type") == kind), {})


def _is_true(workload: Object, kind: str) -> bool:
    return bool(_condition(workload, kind).get("status") == "True")


def _owners(workload: Object) -> list[Object]:
    return workload["metadata"].get("ownerReferences") or []


def _newest(workloads: Iterable[Object]) -> Object | None:
    return max(workloads, key=lambda workload: str(workload["metadata"].get("creationTimestamp")), default=None)
