"""Asks for everything about one pod, for `why` and `describe`."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from gpushare.kube.resources import CORE_EVENTS, GPU_NODES, GPU_SHARES, NODES, PODS, RESOURCE_CLAIMS, WORKLOADS, Object
from gpushare.kubectl.cluster import Cluster, optional
from gpushare.kubectl.wrong import unknown

if TYPE_CHECKING:
    from gpushare.kubectl.views.pods.pod import PodFacts
    from gpushare.kubectl.views.pods.why import WhyAnswer


PLACED = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
"""Selects the pods for which a node has room set aside."""


class AboutPod:
    """`name`: of a pod or, where there is none of that name, of what makes pods: its pod that does not run, if any."""

    def __init__(self, cluster: Cluster, namespace: Callable[[], str | None], name: str) -> None:
        """Asks at once for what needs no namespace. `name`: with or without a kind before a slash."""
        self._cluster = cluster
        self._shares, self._nodes = cluster.items(GPU_SHARES), cluster.items(GPU_NODES)
        self.name = name.rpartition("/")[2]
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

        pods = self._pods.result()
        matching = [pod for pod in pods if pod["metadata"]["name"] == self.name] or worst_first(
            pod for pod in pods if any(is_made_by(owner, self.name) for owner in _owners(pod))
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
            raise unknown(f"in namespace {self.namespace}: pod", self.name, self.known())
        return answer

    def known(self) -> list[str]:
        return [pod["metadata"]["name"] for pod in self._pods.result()]


def _owners(pod: Object) -> list[str]:
    return [str(owner.get("name")) for owner in pod["metadata"].get("ownerReferences") or () if owner.get("controller")]
