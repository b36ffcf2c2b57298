"""What makes the pods that belong on a GPU of their own, and the patch of it. Reads pods, with the user's rights."""

import re
from collections.abc import Iterable
from dataclasses import replace

from gpushare.api.names import slot_resource
from gpushare.kube.pods import controller_of
from gpushare.kube.resources import PODS, KubeError, Object, Resource
from gpushare.kubectl.cluster import Cluster, optional
from gpushare.kubectl.rules.recommend.advice import Advice, AdviceKind, TemplatePatch
from gpushare.kubectl.rules.recommend.history import workload_of

REPLICA_SETS = Resource("apps", "v1", "replicasets")
PATCHED = ("Deployment", "StatefulSet", "DaemonSet")
"""Kinds whose template may be changed, and makes new pods."""
NAME = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")
"""A name that Kubernetes takes. That of a pod's owner is a tenant's text, and the namespace is that of a metric."""


def with_owners(cluster: Cluster, advice: Iterable[Advice]) -> list[Advice]:
    """The advice, with the patch of what makes the pods where they run now and the user may read them."""
    return [_with_owner(cluster, item) if item.kind is AdviceKind.OWN_GPU else item for item in advice]


def _with_owner(cluster: Cluster, advice: Advice) -> Advice:
    namespace = advice.about.partition("/")[0]
    for pod in optional(cluster.items(PODS, namespace)) or ():
        container = container_with(pod, slot_resource(advice.share))
        if container and workload_of(namespace, pod["metadata"]["name"]) == advice.about:
            kind, name = controller_of(pod)
            if kind == "ReplicaSet":
                kind, name = controller_of(_found(cluster, namespace, name) or {})
            if kind in PATCHED and all(map(NAME.fullmatch, (namespace, name, container))):
                slot = slot_resource(advice.share)
                return replace(advice, template=TemplatePatch(kind, namespace, name, container, slot))
    return advice


def _found(cluster: Cluster, namespace: str, name: str) -> Object | None:
    try:
        return cluster.find(REPLICA_SETS, name, namespace).result()
    except KubeError:
        return None


def container_with(pod: Object, resource: str) -> str:
    """The name of the first container that asks for the resource; empty where none does."""
    for container in pod["spec"].get("containers") or ():
        if resource in ((container.get("resources") or {}).get("limits") or {}):
            return str(container["name"])
    return ""
