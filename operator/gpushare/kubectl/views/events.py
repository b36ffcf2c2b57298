"""`kubectl gpushare events`: what gpushare's parts recorded, and what its webhook refused. Pure.

Events are read in the core form, whose selectors name the object concerned.
"""

import re
from collections.abc import Iterable, Sequence
from datetime import datetime

from gpushare.kube.resources import Object
from gpushare.kubectl.output.report import Column, Report, Row, Table
from gpushare.kubectl.views.moments import age

OWN_KINDS = ("gpushare", "gpunode")
_REFUSED = re.compile(
    r'webhook "[^"]*gpushare\.dev"|ValidatingAdmissionPolicy \'gpushare-[^\']*\'.* denied request', re.DOTALL
)
_LONGEST_REFUSAL = 4096
"""Characters that are searched for who refused: a tenant may write a message of 1 MB, of nothing but beginnings."""
LONGEST_WRITER = 64
COLUMNS = (
    Column("NAMESPACE", dropped=2),
    Column("LAST", moving=True),
    Column("TYPE", dropped=3),
    Column("REASON"),
    Column("OBJECT"),
    Column("COUNT", dropped=1, figures=True),
    Column("MESSAGE", text=True),
)
OF_AN_OBJECT = tuple(column for column in COLUMNS if column.name not in ("NAMESPACE", "OBJECT"))


def events(listed: Iterable[Object], at: datetime, *, warnings: bool = False, about: str = "") -> Report:
    """`warnings`: these alone; `about`: the object alone, as kind/name, and of its namespace none of that name before
    it. The oldest first, as kubectl has them."""
    kept = sorted((event for event in listed if concerns_gpushare(event)), key=last_seen)
    if warnings:
        kept = [event for event in kept if event.get("type") == "Warning"]
    if about:
        kept = [event for event in kept if object_of(event) == about.lower()]
        newest = {_namespace(event): _uid(event) for event in kept if _uid(event)}
        kept = [event for event in kept if _uid(event) in ("", newest.get(_namespace(event)))]
    data = [
        {
            "namespace": _namespace(event),
            "lastSeen": last_seen(event),
            "type": event.get("type", ""),
            "reason": event.get("reason", ""),
            "object": object_of(event),
            "count": count(event),
            "message": message_of(event),
        }
        for event in kept
    ]
    rows = [
        (line["namespace"], age(line["lastSeen"], at), line["type"], line["reason"], line["object"],
         f"x{line['count']}", line["message"])
        for line in data
    ]  # fmt: skip
    return Report({"events": data}, [Table(COLUMNS, rows, "no event of gpushare; Kubernetes keeps them for an hour")])


def of_an_object(listed: Iterable[Object], at: datetime) -> list[Row]:
    """Rows of OF_AN_OBJECT."""
    return [
        (age(last_seen(event), at), str(event.get("type", "")), str(event.get("reason", "")), f"x{count(event)}",
         message_of(event))
        for event in sorted(listed, key=last_seen)
    ]  # fmt: skip


def concerns_gpushare(event: Object) -> bool:
    """Tells it by who recorded it and what it is about, and a refusal, which is an event of the object that could not
    make its pod, by who refused. What a message says besides, such as the name of an image, does not matter.

    Shares and nodes have no namespace: an event of a namespace names one only where a tenant wrote it."""
    kind = str((event.get("involvedObject") or {}).get("kind")).lower()  # as `object_of` shows it
    if kind in OWN_KINDS:
        return not _namespace(event)
    return is_ours(event) or _REFUSED.search(str(event.get("message", ""))[:_LONGEST_REFUSAL]) is not None


def message_of(event: Object) -> str:
    """What it says; and who says so, of a share or a node, where that is no part of ours: whoever may write events in
    the namespace of all that has none may say anything of them.
    """
    said = str(event.get("message") or "")
    if is_ours(event) or object_of(event).partition("/")[0] not in OWN_KINDS:
        return said
    return f"not by gpushare, but by {reporter(event)[:LONGEST_WRITER] or 'nobody who is named'}: {said}"


def of_object(listed: Iterable[Object], kind: str, uid: str) -> list[Object]:
    """The events about this very object, not about an earlier one of its name. Empty `uid`: that is not known."""
    return [
        event
        for event in listed
        if (event.get("involvedObject") or {}).get("kind") == kind and (not uid or _uid(event) in ("", uid))
    ]


def _namespace(event: Object) -> str:
    """Of what it is about."""
    return str((event.get("involvedObject") or {}).get("namespace") or "")


def _uid(event: Object) -> str:
    return str((event.get("involvedObject") or {}).get("uid") or "")


def is_ours(event: Object) -> bool:
    """Whether a part of ours wrote it: a policy (`gpushare-events`) lets nobody else say so."""
    return reporter(event).startswith("gpushare-")


def reporter(event: Object) -> str:
    return str(event.get("reportingComponent") or (event.get("source") or {}).get("component") or "")


def last_seen(event: Object) -> str:
    """A time of RFC 3339, in the same form for all, so that it can be sorted as text up to the second."""
    series = event.get("series") or {}
    candidates: Sequence[str | None] = (
        series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"),
        event["metadata"].get("creationTimestamp"),
    )  # fmt: skip
    return next((moment for moment in candidates if moment), "")


def count(event: Object) -> int:
    return int((event.get("series") or {}).get("count") or event.get("count") or 1)


def object_of(event: Object) -> str:
    about = event.get("involvedObject") or {}
    return f"{str(about.get('kind', '')).lower()}/{about.get('name', '')}"
