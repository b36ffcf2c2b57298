"""Whose a process is: its pod and container. Pure."""

from collections.abc import Mapping

from gpushare.agent.process.processes import Process
from gpushare.kube.client import Object
from gpushare.kube.pods import container_name
from gpushare.process.procfs import owner_among


def pod_of(process: Process, pods: Mapping[str, Object]) -> tuple[Object, str] | None:
    """(the pod, the container's name, which is empty where the pod's status does not show it). None: no pod's.

    `pods`: this node's by uid.
    """
    owner = owner_among(process.owners, pods)
    return None if owner is None else (pods[owner.pod_uid], container_name(pods[owner.pod_uid], owner.container_id))
