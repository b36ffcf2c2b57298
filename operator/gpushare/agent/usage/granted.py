"""What a container was granted of a share's GPU, by its claim or by its slot. Pure.

A claim's grant is the one that it was prepared with. A slot's grant is read from the container's environment in the
pod's spec, which nobody can change once the pod exists, and counts only if the container asks for a slot of the GPU's
share: an environment alone grants nothing.
"""

from dataclasses import dataclass

from gpushare.api import names
from gpushare.api.gpunode import ShareName
from gpushare.api.gpushare import GpuShare
from gpushare.grant.environment import grant_from_environment
from gpushare.grant.model import Grant, default_grant
from gpushare.kube.pods import Container, environment, limits


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
