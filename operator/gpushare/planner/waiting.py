"""Changes that wait for a GPU's clients: since when, until when, and for whom. Pure.

The start is in the API: an assignment carries since when it waits, so a restart of the operator or of an agent does not
begin the wait anew. Its words are for the status of a share, which other tenants may read, so they name no pod.
"""

from collections.abc import Collection, Iterable
from datetime import datetime, timedelta

from gpushare.api.gpunode import Assignment
from gpushare.api.gpushare import GpuShare
from gpushare.api.timestamps import parse_timestamp
from gpushare.messages.wording import count_of
from gpushare.planner.gpu_record import GpuRecord
from gpushare.planner.model import Jumps


def since(assignment: Assignment | None, *, draining: bool, now: datetime, jumps: Jumps) -> datetime:
    """The moment since which a GPU waits to leave (`draining`) or for a new daemon; `now` where the wait begins now."""
    if assignment is None or assignment.waiting_since is None or assignment.draining is not draining:
        return now
    try:
        return parse_timestamp(assignment.waiting_since) + jumps.get(
            (assignment.uuid, assignment.waiting_since), timedelta(0)
        )
    except (ValueError, OverflowError):
        return now


def deadline(share: GpuShare | None, begun: datetime) -> datetime | None:
    """When the share's maxWait is over; None: the change waits for ever."""
    seconds = share.max_wait_seconds if share is not None else None
    return None if seconds is None else begun + timedelta(seconds=seconds)


def awaited(records: Iterable[GpuRecord]) -> str:
    """A phrase such as `2 pods to end`, with where they are named; `its container to end` where no pod is known by
    name."""
    records = list(records)
    return _to_end({pod for item in records for pod in item.pods}, sum(len(item.slots) for item in records), "holders")


def awaited_users(records: Iterable[GpuRecord]) -> str:
    """The same, of those who would lose their clients: with a queue, who has a place."""
    records = list(records)
    if all(item.places is None for item in records):
        return awaited(records)
    used = sum(item.places.used if item.places is not None else len(item.slots) for item in records)
    return _to_end({pod for item in records for pod in item.users}, used, "places")


def _to_end(pods: Collection[str], containers: int, field: str) -> str:
    if not pods:
        return f"{'its container' if containers == 1 else 'their containers'} to end"
    them = "it" if len(pods) == 1 else "them"
    return f"{count_of(len(pods), 'pod')} to end (GpuNode.status.{field} names {them})"
