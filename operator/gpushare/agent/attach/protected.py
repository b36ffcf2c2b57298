"""How many protected clients a GPU has: no more than its share allows. Pure.

It is decided here since the agent alone knows all containers of a GPU: the kubelet asks for a slot without saying for
whom, and the webhook knows no node. Guarantees: who was let in stays so, also when the share allows fewer by now; who
is beyond the bound holds no part, and so attaches not at all.
"""

from collections.abc import Collection, Iterable, Mapping

from msgspec.structs import replace

from gpushare.api.client_class import ClientClass
from gpushare.kube.pods import Pod
from gpushare.mps.wire import GrantedContainer, GrantedPod

Client = tuple[str, str]
"""(uid of the pod, container)."""


def protected_clients(pods: Iterable[GrantedPod]) -> list[Client]:
    return [(pod.uid, container.name) for pod in pods for container in pod.containers if _is_protected(container)]


def within_bound(
    granted: Collection[GrantedPod], most: int, before: Collection[Client], pods: Mapping[str, Pod]
) -> list[GrantedPod]:
    """`granted` with at most `most` protected clients, or those of `before`. `pods`: by uid. Of others the pod that the
    kubelet took up first comes first.
    """
    everybody = protected_clients(granted)
    new = sorted(set(everybody) - set(before), key=lambda client: (_started(pods.get(client[0])), client))
    kept = set(everybody) & set(before)
    beyond = set(new[max(0, most - len(kept)) :])
    return [_without(pod, beyond) for pod in granted]


def _without(pod: GrantedPod, beyond: Collection[Client]) -> GrantedPod:
    if not any(client[0] == pod.uid for client in beyond):
        return pod
    containers = [
        replace(item, grant=None, too_many_protected=True) if (pod.uid, item.name) in beyond else item
        for item in pod.containers
    ]
    return replace(pod, containers=containers)


def _is_protected(container: GrantedContainer) -> bool:
    return container.grant is not None and container.grant.client_class == ClientClass.PROTECTED


def _started(pod: Pod | None) -> str:
    """A time of RFC 3339, or what sorts behind all of them."""
    return str(((pod or {}).get("status") or {}).get("startTime") or "~")
