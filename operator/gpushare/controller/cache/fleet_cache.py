"""The operator's copy of the cluster, from which a snapshot for a plan is taken.

GpuShares come from kopf (`handlers`). Of Nodes, GpuNodes and MPS pods there may be thousands, so they are watched only
while this replica leads (`operator`), and only what a plan reads is kept of each (docs/decisions/0001-kopf.md).

Guarantees: those of kube.cache.store. `changed` is called when something that matters to a plan changed, and only then:
the heartbeats of Nodes and the counts of DaemonSets do not count.
"""

import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from gpushare.api import names
from gpushare.api.conditions import AGENT_REPORTING
from gpushare.api.gpunode import Assignment, GpuNode
from gpushare.api.gpushare import GpuShare
from gpushare.controller.cache.compact import compact
from gpushare.controller.claims.cache import ClaimCache
from gpushare.controller.daemonset import MPS_SELECTOR, mps_pod, template_of
from gpushare.controller.writes import stamp_of
from gpushare.kube.cache.reflector import ListWatch
from gpushare.kube.cache.store import Key, Store
from gpushare.kube.resources import DAEMON_SETS, GPU_NODES, GPU_SHARES, NODES, PODS, Object, Resource
from gpushare.planner import MpsPod, NodeView, Snapshot, Template
from gpushare.planner.gpu_record import moves_counts_alone
from gpushare.planner.model import Jumps

if TYPE_CHECKING:
    from gpushare.kube.client import Kube

LOG = logging.getLogger(__name__)
GPU_NODE_STATUS = (
    "observedGeneration",
    "simulated",
    "clientCeiling",
    "computeModePolicy",
    "gpus",
    "daemons",
    "holders",
    "places",
    "foreignHolders",
    "findings",
    "preStopMounted",
)
"""What a plan reads of a GpuNode's status."""

Versions = Mapping[Resource, Mapping[Key, int]]
"""The resourceVersion of each object, by kind and by (namespace, name)."""


class UnreadableError(Exception):
    """A GpuShare that cannot be read: planning without it would take its GPUs away."""


@dataclass(frozen=True, slots=True)
class KnownShare:
    """`share` is None where the object cannot be read; `error` says why. `status`: as it is in the API."""

    name: str
    uid: str
    share: GpuShare | None
    error: str = ""
    status: Object = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KnownNode:
    """`allocatable`: the names of the resources of which the node offers more than zero.

    `lasting_taints`: those that a node with a start-up taint keeps once it serves; None where it has no such taint.
    """

    labels: dict[str, str]
    ready: bool
    allocatable: frozenset[str]
    lasting_taints: tuple[Object, ...] | None = None
    share_labels: frozenset[str] = field(init=False, compare=False)
    """The labels that shares have set, in full."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "share_labels", share_labels(self.labels))

    @property
    def without_agent(self) -> bool:
        """The node agent keeps away, since the driver is being replaced."""
        return names.LABEL_DRIVER_RELEASED in self.labels


def share_labels(labels: Iterable[str]) -> frozenset[str]:
    return frozenset(key for key in labels if key.startswith(names.NODE_LABEL_PREFIX))


@dataclass(frozen=True, slots=True)
class KnownDaemonSet:
    """What a plan and its writes need of a DaemonSet.

    `share`: by its label. `rendered`: the hash of what we applied. `template`: None while it cannot make pods.
    """

    generation: int
    share: str
    rendered: str
    deleting: bool
    template: Template | None


class GpuNodeStore(Store[GpuNode]):
    """The GpuNodes. This store calls `counts_changed` in place of `changed` where a change moves counts alone."""

    def __init__(self, changed: Callable[[], None], counts_changed: Callable[[], None]) -> None:
        super().__init__(known_gpu_node, changed)
        self._counts_changed = counts_changed

    def _set(self, key: Key, version: int, kept: GpuNode | None) -> bool:
        before = self.objects.get(key)
        if not super()._set(key, version, kept):
            return False
        if before is not None and kept is not None and moves_counts_alone(before, kept):
            self._counts_changed()
            return False
        return True


class FleetCache:
    def __init__(self, changed: Callable[[], None], counts_changed: Callable[[], None] | None = None) -> None:
        """`changed` is called in the event loop and must not block. `counts_changed`: in its place where the change
        matters to counts in statuses alone.
        """
        self._changed = changed
        self._writing = False
        changed = self.changed
        self.shares = Store(known_share, changed)
        self.nodes = Store(known_node, changed)
        self.gpu_nodes = GpuNodeStore(changed, counts_changed or changed)
        self.daemon_sets = Store(known_daemon_set, changed)
        self.mps_pods = Store(mps_pod, changed)
        self.claims = ClaimCache(changed)
        self.nvidia_dra_nodes: frozenset[str] = frozenset()
        """Nodes on which NVIDIA's DRA driver offers GPUs."""
        self.no_claims = ""
        """Why the cluster cannot deliver by ResourceClaim; empty where it can."""
        self._stores: dict[Resource, Store[Any]] = {
            GPU_SHARES: self.shares,
            NODES: self.nodes,
            GPU_NODES: self.gpu_nodes,
            DAEMON_SETS: self.daemon_sets,
            PODS: self.mps_pods,
        }
        self._views: dict[str, tuple[KnownNode, NodeView]] = {}
        """The view of each node in the last snapshot, with the node that it was made from."""
        self._viewed: tuple[NodeView, ...] = ()
        self._viewed_at = (0, 0)
        """How often Nodes and GpuNodes had changed by the last snapshot."""
        self._applied: dict[str, int] = {}
        """The generation that our last apply of a DaemonSet led to, by name."""

    def changed(self) -> None:
        """Tells of a change, unless it is the answer to a write of ours: that is as planned."""
        if not self._writing:
            self._changed()

    def watches(self, kube: "Kube", namespace: str) -> list[ListWatch]:
        """The watches of everything but GpuShares. `namespace`: where our DaemonSets and MPS pods are."""
        return [
            ListWatch(kube, NODES, self.nodes),
            ListWatch(kube, GPU_NODES, self.gpu_nodes),
            ListWatch(kube, DAEMON_SETS, self.daemon_sets, namespace),
            ListWatch(kube, PODS, self.mps_pods, namespace, labelSelector=MPS_SELECTOR),
        ]

    def observe(self, resource: Resource, answer: Object) -> None:
        """Takes the answer to a write of ours, which may show what somebody else has changed, too."""
        before = self.shares.get(answer["metadata"]["name"]) if resource == GPU_SHARES else None
        self._writing = True
        try:
            store = self._stores.get(resource)
            if store is not None:
                store.observe(answer)
            else:
                self.claims.observe(resource, answer)
        finally:
            self._writing = False
        if before is not None and _desired(before) != _desired(self.shares.get(before.name)):
            self._changed()

    def applied(self, resource: Resource, answer: Object) -> None:
        """Takes the answer to an apply of ours: this generation is as desired."""
        metadata = answer["metadata"]
        if resource == DAEMON_SETS:
            self._applied[metadata["name"]] = metadata.get("generation", 0)
        if resource == GPU_SHARES and metadata.get("deletionTimestamp") and not metadata.get("finalizers"):
            self.shares.remove(answer)  # it went with its last finalizer
        else:
            self.observe(resource, answer)

    def is_as_applied(self, name: str, daemon_set: KnownDaemonSet) -> bool:
        """Tells whether its spec is that of our last apply. False also where we have not applied it since we
        started."""
        return self._applied.get(name) == daemon_set.generation

    def versions(self) -> Versions:
        """A copy of the resourceVersions of all that is written after a plan. Take it together with the snapshot."""
        written = (GPU_SHARES, NODES, GPU_NODES, DAEMON_SETS)
        return {resource: self._stores[resource].versions() for resource in written} | self.claims.versions()

    def set_cluster(self, nvidia_dra_nodes: frozenset[str], no_claims: str) -> None:
        """Takes what `resync` has read."""
        if (nvidia_dra_nodes, no_claims) != (self.nvidia_dra_nodes, self.no_claims):
            self.nvidia_dra_nodes, self.no_claims = nvidia_dra_nodes, no_claims
            self.changed()

    def assignments(self) -> Iterator[Assignment]:
        """The assignments of every GPU, as the API has them."""
        for node in self.gpu_nodes.objects.values():
            yield from node.spec.assignments or ()

    def snapshot(self, now: datetime, jumps: Jumps = MappingProxyType({})) -> Snapshot:
        """Raises UnreadableError. A GpuNode that cannot be read counts as one without news."""
        shares = [_readable(known) for known in self.shares.objects.values()]
        templates, pods = self._mps(shares)
        return Snapshot(
            tuple(shares),
            self._node_views(),
            self.nvidia_dra_nodes,
            pods,
            templates,
            now,
            self.no_claims,
            self.claims.allocated(),
            self.claims.demand(),
            jumps,
        )

    def _node_views(self) -> tuple[NodeView, ...]:
        """A node that is as it was keeps its view of the last snapshot (`planner.selection.node_facts`)."""
        changes = self.nodes.changes, self.gpu_nodes.changes
        if changes == self._viewed_at:
            return self._viewed
        before, views = self._views, {}
        for (_, name), known in self.nodes.objects.items():
            gpu_node, viewed = self.gpu_nodes.get(name), before.get(name)
            if viewed is None or viewed[0] is not known or viewed[1].gpu_node is not gpu_node:
                viewed = known, _view(name, known, gpu_node)
            views[name] = viewed
        self._views, self._viewed_at = views, changes
        self._viewed = tuple(view for _, view in views.values())
        return self._viewed

    def _mps(self, shares: Iterable[GpuShare]) -> tuple[dict[str, Template], tuple[MpsPod, ...]]:
        """Templates by share, and MPS pods. A share that was made again has a DaemonSet and pods of its own."""
        owners = {names.daemonset_name(share.name, share.metadata.uid): share.name for share in shares}
        templates = {
            owners[name]: known.template
            for (_, name), known in self.daemon_sets.objects.items()
            if name in owners and known.template is not None
        }
        return templates, tuple(pod for owner, pod in self.mps_pods.objects.values() if owner in owners)


def _view(name: str, known: KnownNode, gpu_node: GpuNode | None) -> NodeView:
    return NodeView(name, known.labels, known.ready, known.allocatable, gpu_node, known.lasting_taints is not None)


def _desired(known: KnownShare | None) -> object:
    """All of a share but its status."""
    return (known.share.metadata, known.share.spec) if known is not None and known.share is not None else None


def _readable(known: KnownShare) -> GpuShare:
    if known.share is None:
        raise UnreadableError(f'GpuShare "{known.name}" cannot be read, so nothing is changed: {known.error}')
    return known.share


def known_share(obj: Object) -> KnownShare:
    metadata = obj["metadata"]
    name, uid, status = metadata["name"], metadata.get("uid", ""), obj.get("status") or {}
    try:
        share = GpuShare.model_validate({**obj, "metadata": _without_version(metadata)})
        share.read_amounts()
    except ValueError as error:  # a ValidationError too
        LOG.error("GpuShare %s cannot be read: %s", name, error)
        return KnownShare(name, uid, None, str(error), status)
    return KnownShare(name, uid, share, status=status)


def known_gpu_node(obj: Object) -> GpuNode | None:
    """Returns None for a GpuNode that cannot be read: it counts as one without news."""
    metadata, status = obj["metadata"], obj.get("status") or {}
    pruned = {
        "metadata": {"name": metadata["name"], "generation": metadata.get("generation", 0)},
        "spec": obj.get("spec") or {},
        "status": {
            **{key: status[key] for key in GPU_NODE_STATUS if key in status},
            "conditions": [_known_condition(item) for item in status.get("conditions") or []],
        },
    }
    try:
        return compact(GpuNode.model_validate(pruned))
    except ValidationError as error:
        LOG.error("GpuNode %s cannot be read: %s", metadata["name"], error)
        return None


def _known_condition(condition: Object) -> Object:
    """The operator's own condition stays as it is; an agent's keeps its status alone, since the texts change often."""
    if condition["type"] == AGENT_REPORTING:
        return condition
    return {"type": condition["type"], "status": condition["status"], "reason": "", "lastTransitionTime": ""}


def known_node(node: Object) -> KnownNode:
    """Labels and resources repeat from node to node, so their texts are shared."""
    status = node.get("status") or {}
    conditions = status.get("conditions") or []
    labels = node["metadata"].get("labels") or {}
    return KnownNode(
        labels={sys.intern(key): sys.intern(value) for key, value in labels.items()},
        ready=any(item.get("type") == "Ready" and item.get("status") == "True" for item in conditions),
        allocatable=frozenset(
            sys.intern(name) for name, amount in (status.get("allocatable") or {}).items() if str(amount) != "0"
        ),
        lasting_taints=_lasting_taints(node),
    )


def _lasting_taints(node: Object) -> tuple[Object, ...] | None:
    taints = (node.get("spec") or {}).get("taints") or []
    kept = tuple(taint for taint in taints if taint["key"] not in names.STARTUP_TAINTS)
    return kept if len(kept) < len(taints) else None


def known_daemon_set(obj: Object) -> KnownDaemonSet:
    metadata = obj["metadata"]
    return KnownDaemonSet(
        generation=metadata.get("generation", 0),
        share=(metadata.get("labels") or {}).get(names.LABEL_SHARE, ""),
        rendered=stamp_of(obj),
        deleting=bool(metadata.get("deletionTimestamp")),
        template=template_of(obj),
    )


def _without_version(metadata: Object) -> Object:
    return {key: value for key, value in metadata.items() if key not in ("resourceVersion", "managedFields")}
