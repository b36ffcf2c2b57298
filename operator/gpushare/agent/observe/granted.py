"""What a container was granted of a share's GPU, by its claim or by its slot. Pure.

A claim's grant is the one that it was prepared with. A slot's grant is read from the container's environment in the
pod's spec, which nobody can change once the pod exists, and counts only if the container asks for a slot of the GPU's
share: an environment alone grants nothing.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from gpushare.agent.podresources.holdings import ContainerName, ShareGpu
from gpushare.api import names
from gpushare.api.gpunode import ShareName
from gpushare.api.gpushare import GpuShare
from gpushare.grant.environment import grant_from_environment
from gpushare.grant.model import Grant, default_grant
from gpushare.kube.client import Object
from gpushare.kube.pods import Container, containers, environment, has_ended, limits


@dataclass(frozen=True, slots=True)
class FoundGrant:
    """`part`: the container asks for a slot of the share, or has a claim of it. `grant`: None without a part, and of a
    share that is not known any more.

    `by_default`: the share's default of today stands in, since the pod carries no grant: it never passed the webhook.
    """

    part: bool
    grant: Grant | None
    by_default: bool


def container_grant(
    container: Container, share: ShareName, gpu_share: GpuShare | None, of_claim: Grant | None
) -> FoundGrant:
    """`gpu_share`: the share of today; None: it is not known. `of_claim`: what the container's claim of it grants."""
    part = of_claim is not None or has_slot(container, share)
    carried = grant_from_environment(environment(container)) if part else None
    granted = of_claim or (carried if carried is not None and carried.share == share else None)
    default = default_grant(gpu_share) if part and granted is None and gpu_share is not None else None
    return FoundGrant(part, granted or default, default is not None)


def has_slot(container: Container, share: ShareName) -> bool:
    return names.slot_resource(share) in limits(container)


@dataclass(frozen=True, slots=True)
class Reserved:
    """The reservations of one GPU's containers together, in MiB. `limits_mib`: what they may use at most."""

    reserved_mib: int = 0
    limits_mib: int = 0


def reserved(parts: Iterable[tuple[ContainerName, ShareGpu, Grant]]) -> dict[ShareGpu, Reserved]:
    """`parts`: by `granted_parts`."""
    totals: dict[ShareGpu, Reserved] = {}
    for _, place, grant in parts:
        before = totals.get(place, Reserved())
        totals[place] = Reserved(before.reserved_mib + grant.memory_mib, before.limits_mib + grant.limit_mib)
    return totals


def granted_parts(
    pods: Iterable[Object],
    places: Mapping[ContainerName, ShareGpu],
    claimed: Mapping[ContainerName, Grant],
    shares: Mapping[ShareName, GpuShare],
) -> Iterator[tuple[ContainerName, ShareGpu, Grant]]:
    """The containers that hold a part of a GPU of these shares. `places`: where their slots and claims are."""
    for pod in pods:
        if has_ended(pod):
            continue
        for container in containers(pod):
            key = (pod["metadata"]["namespace"], pod["metadata"]["name"], container["name"])
            place = places.get(key)
            share = shares.get(place[0]) if place is not None else None
            if place is None or share is None:
                continue
            grant = container_grant(container, share.name, share, claimed.get(key)).grant
            if grant is not None:
                yield key, place, grant
