"""NodeCache: what the API server shows of one node, as its agent has seen it last.

Guarantees: a GpuShare that cannot be parsed, such as another release's, is left out and does not stop the others. A
GpuNode counts as far as it can be read.
"""

import logging
from collections.abc import Callable
from contextlib import suppress

from pydantic import ValidationError

from gpushare.agent.node_pods import kept_pod
from gpushare.api.gpunode import Borrower, Finding, GpuNode, ShareName
from gpushare.api.gpushare import GpuShare
from gpushare.kube.cache.kept import kept_share
from gpushare.kube.cache.reflector import Key, Reflector
from gpushare.kube.client import GPU_NODES, GPU_SHARES, PODS, Kube, Object
from gpushare.kube.pods import pods_by_cgroup_uid
from gpushare.messages.log_on_change import LogOnChange

LOG = logging.getLogger(__name__)


class NodeCache:
    """`nodes`: this node's GpuNode. `share_objects`: all GpuShares. `pods`: this node's, as `node_pods` keeps them."""

    def __init__(self, kube: Kube, node: str, changed: Callable[[], None]) -> None:
        """`changed` is called at every change."""
        self._node = node
        self._changed = changed
        self.nodes = Reflector(kube, GPU_NODES, changed, fieldSelector=f"metadata.name={node}")
        self.share_objects = Reflector(kube, GPU_SHARES, self._shares_changed, prune=kept_share)
        self.pods = Reflector(kube, PODS, self._pods_changed, prune=kept_pod, fieldSelector=f"spec.nodeName={node}")
        self.shares: dict[ShareName, GpuShare] = {}

        self._gpu_node: tuple[Object, GpuNode] | None = None
        """The object as it was read last, and what it says."""
        self._parsed: dict[Key, tuple[Object, GpuShare | None]] = {}
        self._pod_followers: list[Callable[[], None]] = []
        self._problems = LogOnChange(LOG)

    @property
    def informed(self) -> bool:
        """Whether shares and assignments were read from the API server."""
        return self.share_objects.synced.is_set() and self.nodes.synced.is_set()

    @property
    def complete(self) -> bool:
        """Whether this node's pods were read too."""
        return self.informed and self.pods.synced.is_set()

    def raw_gpu_node(self) -> Object | None:
        """The object as the API has it, with its uid."""
        return next(iter(self.nodes.objects.values()), None)

    def gpu_node(self) -> GpuNode | None:
        """A spec or status that cannot be read, such as another release's, counts as one without news."""
        raw = self.raw_gpu_node()
        if raw is None:
            return None
        if self._gpu_node is None or self._gpu_node[0] is not raw:
            self._gpu_node = raw, self._validated(raw)
        return self._gpu_node[1]

    def published_findings(self) -> list[Finding]:
        """The findings in the API server's GpuNode."""
        node = self.gpu_node()
        return node.status.findings if node is not None else []

    def published_borrowers(self) -> list[Borrower]:
        """The borrowers in the API server's GpuNode."""
        node = self.gpu_node()
        return node.status.borrowers if node is not None else []

    def pods_by_uid(self) -> dict[str, Object]:
        """This node's pods, as far as they are known."""
        return {pod["metadata"]["uid"]: pod for pod in self.pods.objects.values()}

    def pods_by_cgroup_uid(self) -> dict[str, Object]:
        """The same by the uid in the names of their cgroups: a static pod's mirror is there by both."""
        return {uid: dict(pod) for uid, pod in pods_by_cgroup_uid(self.pods.objects.values()).items()}

    def known_pods(self) -> list[Object] | None:
        """This node's pods; None until all of them were read."""
        return list(self.pods.objects.values()) if self.pods.synced.is_set() else None

    def follow_pods(self, changed: Callable[[], None]) -> None:
        """`changed` is called at every change of this node's pods."""
        self._pod_followers.append(changed)

    def _validated(self, gpu_node: Object) -> GpuNode:
        try:
            node = GpuNode.model_validate(gpu_node)
            self._problems.clear()
        except ValidationError as error:
            self._problems.log("GpuNode %s is ignored where it cannot be read: %s", self._node, error)
            node = _readable(gpu_node)
        return node

    def _pods_changed(self) -> None:
        self._changed()
        for changed in self._pod_followers:
            changed()

    def _shares_changed(self) -> None:
        self._parsed = {key: self._parse(key, obj) for key, obj in self.share_objects.objects.items()}
        self.shares = {share.name: share for _, share in self._parsed.values() if share is not None}
        self._changed()

    def _parse(self, key: Key, obj: Object) -> tuple[Object, GpuShare | None]:
        """(object, share), once for each object."""
        known = self._parsed.get(key)
        if known is not None and known[0] == obj:
            return known
        try:
            share = GpuShare.model_validate(obj)
            share.read_amounts()
        except ValueError as error:  # a ValidationError too
            LOG.warning("GpuShare %s is ignored: %s", key[1], error)
            return obj, None
        return obj, share


def _readable(gpu_node: Object) -> GpuNode:
    node = GpuNode.model_validate({"metadata": gpu_node["metadata"]})
    for part in ("spec", "status"):
        with suppress(ValidationError):
            whole = GpuNode.model_validate({"metadata": gpu_node["metadata"], part: gpu_node.get(part) or {}})
            node = node.model_copy(update={part: getattr(whole, part)})
    return node
