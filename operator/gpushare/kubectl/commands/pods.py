"""Asks for everything about one pod, for `why` and `describe`."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from gpushare.kube.resources import CORE_EVENTS, GPU_NODES, GPU_SHARES, NODES, PODS, RESOURCE_CLAIMS, WORKLOADS, Object
from gpushare.kubectl.cluster import Cluster, optional
from gpushare.kubectl.failures import unknown

if TYPE_CHECKING:
    from gpushare.kubectl.views.pods.pod import PodFacts
    from gpushare.kubectl.views.pods.why import WhyAnswer


POD_OWNERS = {
    **dict.fromkeys(("deployment", "deployments", "deploy", "replicaset", "replicasets", "rs"), "ReplicaSet"),
    **dict.fromkeys(("statefulset", "statefulsets", "sts"), "StatefulSet"),
    **dict.fromkeys(("daemonset", "daemonsets", "ds"), "DaemonSet"),
    **dict.fromkeys(("job", "jobs", "cronjob", "cronjobs", "cj"), "Job"),
}
"""The kind of what owns the pods of an object, by its kind as kubectl takes it. Any owner may be of another kind."""
MADE_THROUGH = ("deploy", "cronjob", "cj")
"""How kinds begin whose ReplicaSet or Job, with a hash or a time at the end of its name, owns the pods."""
PLACED = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
"""Selects the pods for which a node has room set aside."""


class AboutPod:
    """`name`: of a pod or, where there is none of that name, of what makes pods: its pod that does not run, if any."""

    def __init__(self, cluster: Cluster, namespace: Callable[[], str | None], name: str) -> None:
        """Asks at once for what needs no namespace. `name`: with or without a kind before a slash."""
        self._cluster = cluster
        self._shares, self._nodes = cluster.items(GPU_SHARES), cluster.items(GPU_NODES)
        self._written, _, self.name = name.rpartition("/")
        self.namespace = namespace() or "default"
        self._pods = cluster.items(PODS, self.namespace)
        self._claims = cluster.items(RESOURCE_CLAIMS, self.namespace)
        self._workloads = cluster.items(WORKLOADS, self.namespace)
        self._failures = cluster.items(CORE_EVENTS, self.namespace, fieldSelector="reason=FailedCreate")
        self._told = cluster.items(CORE_EVENTS, self.namespace, fieldSelector=f"involvedObject.name={self.name}")
        self._cluster_nodes = cluster.items(NODES)

    def facts(self) -> "PodFacts | None":
        """What is known of the pod; None where there is none."""
        from gpushare.api.gpunode import GpuNode
        from gpushare.api.gpushare import GpuShare
        from gpushare.kubectl.views.objects import read
        from gpushare.kubectl.views.pods.pod import PodFacts
        from gpushare.kubectl.views.pods.why import is_made_by, worst_first

        pods, owned_by = self._pods.result(), self._owners_kind()
        matching = [pod for pod in pods if not owned_by and pod["metadata"]["name"] == self.name] or worst_first(
            pod
            for pod in pods
            if any(is_made_by(name, self.name) and owned_by in ("", kind) for kind, name in _owners(pod))
        )
        if not matching:
            return None
        pod = matching[0]
        events = self._cluster.items(
            CORE_EVENTS, self.namespace, fieldSelector=f"involvedObject.uid={pod['metadata']['uid']}"
        )
        waits = not (pod.get("spec") or {}).get("nodeName")
        placed = self._cluster.items(PODS, fieldSelector=PLACED) if waits else None
        shares = {share.name: share for share in read(GpuShare, optional(self._shares) or ())}
        nodes = read(GpuNode, optional(self._nodes) or ())
        claims, workloads = optional(self._claims) or (), optional(self._workloads) or ()
        known = optional(placed) if placed is not None else None
        cluster_nodes = optional(self._cluster_nodes) or ()
        return PodFacts(pod, optional(events) or (), shares, nodes, claims, workloads, known, pods, cluster_nodes)

    def unmade(self) -> "WhyAnswer":
        """Why there is no such pod. Raises WrongInputError where nothing says so."""
        from gpushare.kubectl.views.pods.why import unmade

        failures, workloads = optional(self._failures) or (), optional(self._workloads) or ()
        answer = unmade(self.name, self.namespace, failures, workloads, optional(self._told) or ())
        if answer is None:
            what, known = self._written or "pod", self.known()
            raise unknown(f"in namespace {self.namespace}: {what}", self.name, known)
        return answer

    def known(self) -> list[str]:
        """The names of the pods; for another kind those of its objects that have pods."""
        pods, kind = self._pods.result(), self._owners_kind()
        if not kind:
            return [pod["metadata"]["name"] for pod in pods]
        owners = {name for pod in pods for owner, name in _owners(pod) if owner == kind}
        if self._kind().startswith(MADE_THROUGH):
            owners = {name.rpartition("-")[0] or name for name in owners}
        return sorted(owners)

    def _owners_kind(self) -> str:
        """The kind of what owns the pods, where a kind other than Pod was written; empty: whatever has the name."""
        return POD_OWNERS.get(self._kind(), "")

    def _kind(self) -> str:
        return self._written.lower().partition(".")[0]


def _owners(pod: Object) -> list[tuple[str, str]]:
    """Kind and name of the controller."""
    owners = pod["metadata"].get("ownerReferences") or ()
    return [(str(owner.get("kind")), str(owner.get("name"))) for owner in owners if owner.get("controller")]
