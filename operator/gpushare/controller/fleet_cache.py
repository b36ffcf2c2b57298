"""What the operator knows of the cluster: a cache that watches fill and from which a snapshot is taken.

Guarantees: an object only ever gets newer (an event that comes late changes nothing); `relisted` also drops what was
deleted while no watch ran. `changed` is called when something that matters to a plan changed, and only then: the
heartbeats of Nodes and the counts of DaemonSets do not count.
"""

import logging
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from gpushare.api import names
from gpushare.api.gpunode import GpuNode
from gpushare.api.gpushare import GpuShare
from gpushare.controller.claim_cache import ClaimCache
from gpushare.controller.claim_views import demand
from gpushare.controller.mps_pods import mps_pod, template_of
from gpushare.fleet import MpsPod, NodeView, Snapshot, Template
from gpushare.kube.client import DAEMON_SETS, GPU_NODES, GPU_SHARES, NODES, PODS, Object, Resource

LOG = logging.getLogger(__name__)
WATCHED = (GPU_SHARES, GPU_NODES, NODES, DAEMON_SETS, PODS)
"""DaemonSets and pods: those of our namespace, of pods the MPS ones alone."""


class UnreadableError(Exception):
    """A GpuShare that we cannot read: planning without it would take its GPUs away."""


class FleetCache:
    def __init__(self, changed: Callable[[], None]) -> None:
        self.changed = changed
        self.claims = ClaimCache(changed)
        self.nvidia_dra_nodes: frozenset[str] = frozenset()
        self.no_claims = ""
        """Why the cluster cannot deliver by ResourceClaim; empty where it can."""
        self._objects: dict[str, dict[str, Object]] = {resource.plural: {} for resource in WATCHED}
        self._views: dict[tuple[str, str], Any] = {}
        """Parsed once per version: (plural, name) -> what a snapshot takes of it."""
        self._tombstones: dict[tuple[str, str], int] = {}
        """Versions of deletions since the last list: an answer that comes after its object's end changes nothing."""
        self._applied: dict[tuple[str, str], int] = {}
        """Generations that our own applies led to."""

    def get(self, resource: Resource, name: str) -> Object | None:
        return self._objects[resource.plural].get(name)

    def all(self, resource: Resource) -> dict[str, Object]:
        return self._objects[resource.plural]

    def observe(self, resource: Resource, obj: Object) -> None:
        """An object as a watch, a list or the answer to a write shows it."""
        name = obj["metadata"]["name"]
        known = self._objects[resource.plural].get(name)
        if known is not None and not _newer(obj, known):
            return
        if _version_of(obj) <= self._tombstones.get((resource.plural, name), -1):
            return
        before = self._views.get((resource.plural, name))
        after = _view(resource, obj)
        self._objects[resource.plural][name] = obj
        self._views[resource.plural, name] = after
        if known is None or before != after:
            self.changed()

    def deleted(self, resource: Resource, obj: Object) -> None:
        """The last state of an object that is gone; one that was created again since stays."""
        name = obj["metadata"]["name"]
        self._tombstones[resource.plural, name] = _version_of(obj)
        known = self._objects[resource.plural].get(name)
        if known is not None and not _newer(known, obj):
            self._forget(resource, name)

    def _forget(self, resource: Resource, name: str) -> None:
        del self._objects[resource.plural][name]
        del self._views[resource.plural, name]
        self.changed()

    def relisted(self, resource: Resource, items: Iterable[Object], version: str) -> None:
        """A complete list, taken at `version`: what it lacks is gone, unless it was seen later than that."""
        listed = {item["metadata"]["name"]: item for item in items}
        self._tombstones = {key: gone for key, gone in self._tombstones.items() if key[0] != resource.plural}
        for name, known in list(self._objects[resource.plural].items()):
            if name not in listed and _version_of(known) <= _version(version):
                self._forget(resource, name)
        for item in listed.values():
            self.observe(resource, item)

    def applied(self, resource: Resource, answer: Object) -> None:
        """The answer to an apply of ours: its generation is the one that is as we want it."""
        if resource not in WATCHED:
            self.claims.observe(resource, answer)
            return
        metadata = answer["metadata"]
        self._applied[resource.plural, metadata["name"]] = metadata.get("generation", 0)
        self.observe(resource, answer)

    def touched(self, resource: Resource, obj: Object) -> bool:
        """Its spec was changed since our last apply, or we have not applied it since we started."""
        metadata = obj["metadata"]
        generation: int = metadata.get("generation", 0)
        return self._applied.get((resource.plural, metadata["name"])) != generation

    def slices_listed(self, nodes: frozenset[str]) -> None:
        if nodes != self.nvidia_dra_nodes:
            self.nvidia_dra_nodes = nodes
            self.changed()

    def claims_served(self, no_claims: str) -> None:
        if no_claims != self.no_claims:
            self.no_claims = no_claims
            self.changed()

    def snapshot(self, now: datetime) -> Snapshot:
        """Raises UnreadableError. A GpuNode that cannot be read counts as one without news."""
        shares, nodes = [], []
        for name in self._objects[GPU_SHARES.plural]:
            share = self._views[GPU_SHARES.plural, name]
            if isinstance(share, str):
                raise UnreadableError(f'GpuShare "{name}" cannot be read, so nothing is changed: {share}')
            shares.append(share)
        for name in self._objects[NODES.plural]:
            labels, ready, allocatable = self._views[NODES.plural, name]
            gpu_node = self._views.get((GPU_NODES.plural, name))
            known = gpu_node if isinstance(gpu_node, GpuNode) else None
            nodes.append(NodeView(name, labels, ready, allocatable, known))
        templates, pods = self._mps(shares)
        return Snapshot(
            tuple(shares),
            tuple(nodes),
            self.nvidia_dra_nodes,
            pods,
            templates,
            now,
            self.no_claims,
            self.claims.allocated(),
            demand(self.claims),
        )

    def _mps(self, shares: Iterable[GpuShare]) -> tuple[dict[str, Template], tuple[MpsPod, ...]]:
        """By share: one that was made again has a DaemonSet of another name, and its own pods only."""
        owners = {names.daemonset_name(share.name, share.metadata.uid): share.name for share in shares}
        templates = {}
        for name, obj in self._objects[DAEMON_SETS.plural].items():
            template = template_of(obj)
            if name in owners and template is not None:
                templates[owners[name]] = template
        views = (self._views[PODS.plural, name] for name in self._objects[PODS.plural])
        return templates, tuple(pod for owner, pod in views if pod is not None and owner in owners)


def _view(resource: Resource, obj: Object) -> Any:
    """What of an object matters to a plan; for one of ours that cannot be read, the error as text."""
    if resource == NODES:
        return _node_view(obj)
    if resource == DAEMON_SETS:
        metadata = obj["metadata"]
        return (
            metadata.get("generation"),
            metadata.get("annotations"),
            metadata.get("deletionTimestamp"),
            template_of(obj),
        )
    if resource == PODS:
        return mps_pod(obj)
    model = GpuShare if resource == GPU_SHARES else GpuNode
    try:
        parsed = model.model_validate(obj)
    except ValidationError as error:
        LOG.error("%s %s cannot be read: %s", model.__name__, obj["metadata"]["name"], error)
        return str(error)
    return parsed.model_copy(update={"metadata": parsed.metadata.model_copy(update={"resource_version": ""})})


def _node_view(node: Object) -> tuple[dict[str, str], bool, frozenset[str]]:
    status = node.get("status") or {}
    conditions = status.get("conditions") or []
    ready = any(item.get("type") == "Ready" and item.get("status") == "True" for item in conditions)
    allocatable = frozenset(name for name, amount in (status.get("allocatable") or {}).items() if str(amount) != "0")
    return node["metadata"].get("labels") or {}, ready, allocatable


def _newer(obj: Object, known: Object) -> bool:
    return _version_of(obj) > _version_of(known)


def _version_of(obj: Object) -> int:
    return _version(obj["metadata"].get("resourceVersion", ""))


def _version(text: str) -> int:
    """Resource versions of one kind are comparable as integers (Kubernetes API concepts, since 1.35 by promise)."""
    return int(text) if text.isdigit() else 0
