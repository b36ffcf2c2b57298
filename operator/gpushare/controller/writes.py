"""One write to the API as a value, before anything is sent, and the stamp by which we recognize what we applied."""

import hashlib
import json
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

from gpushare.api import names
from gpushare.api.conditions import EventReason, ShareReason
from gpushare.kube.resources import CLAIM_TEMPLATES, Object, Resource

MANAGER = "gpushare-operator"
"""Field manager of our writes, and the reporting controller of our events."""

RENDERED = f"{names.GROUP}/rendered"
"""Annotation with the digest of what we applied. Objects themselves cannot be compared: the API server adds defaults
and rewrites quantities, and a new release may also remove fields."""


def digest(body: Object) -> str:
    """16 hex digits; the same for equal bodies."""
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:16]


def stamped(body: Object) -> Object:
    """`body` with its stamp, as its only annotation."""
    return {**body, "metadata": {**body["metadata"], "annotations": {RENDERED: digest(body)}}}


def stamp_of(obj: Object) -> str:
    """Of what was applied; empty where there is none."""
    return str((obj["metadata"].get("annotations") or {}).get(RENDERED, ""))


class WriteStage(IntEnum):
    """What a write is about, in the order in which a share sees it; `Applier` says which of them wait for others.

    A share gets its finalizer before it gets a GPU, its DaemonSet before a node asks for its pods, and goes only after
    all its objects are gone. A new node is opened to pods once it serves. What makes a share reachable from namespaces
    comes last, since that may be many writes.
    """

    HOLD = 0
    RUN = 1
    LABEL = 2
    ASSIGN = 3
    OPEN = 4
    REPLACE = 5
    STOP = 6
    RELEASE = 7
    REPORT = 8
    REACH = 9


@dataclass(frozen=True, slots=True)
class Note:
    """An Event about a share, posted once its write has succeeded."""

    share: str
    kind: Literal["Normal", "Warning"]
    reason: EventReason | ShareReason
    action: str
    text: str


@dataclass(frozen=True, slots=True)
class Write:
    """`shares`: those that it is about. `uid`: the only object to be deleted."""

    stage: WriteStage
    verb: Literal["apply", "merge", "json", "delete"]
    resource: Resource
    name: str
    body: Object
    namespace: str | None = None
    subresource: str | None = None
    operations: tuple[Object, ...] = ()
    """Of a JSON patch, in place of `body`."""
    manager: str = ""
    uid: str = ""
    shares: frozenset[str] = frozenset()
    notes: tuple[Note, ...] = ()

    @property
    def key(self) -> tuple[str, str, str]:
        """Writes of the same key share their back-off."""
        return (
            self.resource.plural,
            f"{self.namespace or ''}/{self.name}",
            f"{self.subresource or ''}/{self.stage.name}",
        )

    def __str__(self) -> str:
        where = f"{self.namespace}/" if self.resource == CLAIM_TEMPLATES else ""
        target = f"{self.resource.plural}/{where}{self.name}" + (f"/{self.subresource}" if self.subresource else "")
        return f"{self.verb} {target} ({self.stage.name.lower()})"
