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

Key = tuple[str, str, str]
"""The kind of object, its namespace and name, and subresource and stage."""

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
    """The stamp of what was applied; empty where there is none."""
    return str((obj["metadata"].get("annotations") or {}).get(RENDERED, ""))


class WriteStage(IntEnum):
    """What a write is about, in the order in which a share sees it; `apply.phases` says which are sent together.

    What makes a share's claims possible goes first when it ends (CLOSE). A share gets its finalizer (HOLD) before it
    gets a GPU, its DaemonSet (RUN) before a node asks for its pods, and goes (RELEASE) only after all its objects are
    gone. A new node is opened to pods once it serves. What makes a share reachable from namespaces comes last, since
    that may be many writes.
    """

    CLOSE = 0
    HOLD = 1
    RUN = 2
    LABEL = 3
    ASSIGN = 4
    OPEN = 5
    REPLACE = 6
    STOP = 7
    RELEASE = 8
    REPORT = 9
    REACH = 10


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
    """`shares`: those that the write is about. `uid`: the only object to be deleted.

    `version`: the resourceVersion of the object that was planned from, for an apply or a merge; empty for an object
    that is made, and for a status, which nobody else writes.
    """

    stage: WriteStage
    verb: Literal["apply", "merge", "json", "delete"]
    resource: Resource
    name: str
    body: Object
    namespace: str | None = None
    subresource: str | None = None
    operations: tuple[Object, ...] = ()
    """The operations of a JSON patch, in place of `body`."""
    manager: str = ""
    uid: str = ""
    version: str = ""
    shares: frozenset[str] = frozenset()
    notes: tuple[Note, ...] = ()

    @property
    def about(self) -> frozenset[str]:
        """The shares that are told when it is refused: what a share's object is labelled with counts, too."""
        label = (self.body.get("metadata", {}).get("labels") or {}).get(names.LABEL_SHARE)
        return self.shares or frozenset([label] if label else [])

    @property
    def versioned_body(self) -> Object:
        """`body` as it is sent: refused where the object is not of `version` any more."""
        if not self.version:
            return self.body
        return {**self.body, "metadata": {**self.body.get("metadata", {}), "resourceVersion": self.version}}

    @property
    def key(self) -> Key:
        """Writes with the same key are under way one at a time, and share their back-off."""
        return (
            self.resource.plural,
            f"{self.namespace or ''}/{self.name}",
            f"{self.subresource or ''}/{self.stage.name}",
        )

    @property
    def what(self) -> str:
        """What is written, for messages."""
        where = f"{self.namespace}/" if self.namespace else ""
        return f"to {self.verb} {self.resource.plural} {where}{self.name}"

    def __str__(self) -> str:
        where = f"{self.namespace}/" if self.resource == CLAIM_TEMPLATES else ""
        target = f"{self.resource.plural}/{where}{self.name}" + (f"/{self.subresource}" if self.subresource else "")
        return f"{self.verb} {target} ({self.stage.name.lower()})"
