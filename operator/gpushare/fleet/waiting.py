"""Changes that wait for a GPU's clients: since when, until when, and for whom. Pure.

The start is in the API: an assignment carries since when it waits, so a restart of the operator or of an agent does not
begin the wait anew.
"""

from collections.abc import Collection
from datetime import datetime, timedelta

from gpushare.api.gpunode import Assignment
from gpushare.api.gpushare import GpuShare
from gpushare.api.timestamps import parse_timestamp
from gpushare.fleet.gpu_record import GpuRecord

NAMES_SHOWN = 8


def since(assignment: Assignment | None, *, draining: bool, now: datetime) -> datetime:
    """Since when a GPU waits to leave (`draining`) or for a new daemon; `now` where the wait begins now."""
    if assignment is None or assignment.waiting_since is None or assignment.draining is not draining:
        return now
    try:
        return parse_timestamp(assignment.waiting_since)
    except ValueError:
        return now


def deadline(share: GpuShare | None, begun: datetime) -> datetime | None:
    """When the share's maxWait is over; None: the change waits for ever."""
    seconds = share.max_wait_seconds if share is not None else None
    return None if seconds is None else begun + timedelta(seconds=seconds)


def awaited(records: Collection[GpuRecord]) -> str:
    """Such as `pods ml/a, ml/b`; `its container` where no pod is known by name."""
    pods = sorted({pod for record in records for pod in record.pods})
    if not pods:
        return "its container" if sum(len(record.slots) for record in records) == 1 else "their containers"
    more = f" and {len(pods) - NAMES_SHOWN} more" if len(pods) > NAMES_SHOWN else ""
    return f"pod{'' if len(pods) == 1 else 's'} {', '.join(pods[:NAMES_SHOWN])}{more}"
