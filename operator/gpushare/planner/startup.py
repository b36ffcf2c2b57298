"""A new node serves its shares: only then may the taint go that kept pods away. Pure."""

from collections.abc import Mapping, Sequence

from gpushare.api.gpunode import Assignment
from gpushare.planner.model import NodeView


def waits_for(node: NodeView, planned: Sequence[Assignment], resources: Mapping[str, str]) -> str:
    """What keeps pods away still; empty once every daemon is verified and every resource offered.

    `planned`: what the node's GPUs are to be; none: it serves no share, so nothing is waited for. `resources`: of
    the shares that the kubelet offers. A GPU that a share gives back is waited for by nobody.
    """
    gpu_node = node.gpu_node
    if gpu_node is None or not node.has_report:
        return "no GPU of it was reported by a node agent"
    if node.silence:
        return node.silence
    if not node.observed or list(gpu_node.spec.assignments or ()) != list(planned):
        return "its agent has not read yet which share each GPU belongs to"
    ready = {(daemon.uuid, daemon.share) for daemon in gpu_node.status.daemons if daemon.ready}
    for item in planned:
        if item.draining:
            continue
        if (item.uuid, item.share) not in ready:
            return f"GPU {item.uuid} is not verified for share {item.share} yet"
        resource = resources.get(item.share)
        if resource is not None and resource not in node.allocatable:
            return f"its kubelet does not offer {resource} yet"
    return ""
