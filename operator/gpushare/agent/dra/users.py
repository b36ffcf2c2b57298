"""Which containers of a pod use which claims. Pure: from the pod's spec and status in the API."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from gpushare.agent.dra.allocation import Allocation, ClaimRefused
from gpushare.api.names import share_of_resource
from gpushare.kube.client import Object
from gpushare.kube.pods import containers, grace_period_seconds, limits

LEAST_GRACE_SECONDS = 2
"""A pod of a shorter grace period gets no preStop hook of ours: there is no time for one."""


@dataclass(frozen=True, slots=True)
class Use:
    """`claim`: the ResourceClaim's name; `request`: the name of one of its requests; empty: all of them."""

    container: str
    claim: str
    request: str = ""

    def of(self, claim: str, request: str) -> bool:
        return self.claim == claim and self.request in ("", request)


def uses(pod: Object) -> Iterator[Use]:
    """The uses in the order of `kube.pods.containers`; without claims that have no name in the status yet."""
    names, for_slots = _claim_names(pod), (pod.get("status") or {}).get("extendedResourceClaimStatus") or {}
    mapped = [item for item in for_slots.get("requestMappings") or () if for_slots.get("resourceClaimName")]
    for container in containers(pod):
        for item in (container.get("resources") or {}).get("claims") or ():
            if item["name"] in names:
                yield Use(container["name"], names[item["name"]], item.get("request") or "")
        for item in mapped:
            if item["containerName"] == container["name"]:
                yield Use(container["name"], for_slots["resourceClaimName"], item["requestName"])


def users(pod: Object, claim: str, request: str) -> list[str]:
    return [use.container for use in uses(pod) if use.of(claim, request)]


def check(claim: Allocation, pod: Object, others: Collection[str]) -> None:
    """Refuses a part that several containers use, a container with several parts or with a slot besides, since a
    process reaches one GPU, and a container without a preStop hook, which would not leave in order.

    The webhook sees to all that where it sees the claim: not where the claim or its template was made after the pod.

    `others`: names of the namespace's claims that are prepared already. Errors: ClaimRefused.
    """
    used = list(uses(pod))
    for part in claim.parts:
        several = [use.container for use in used if use.of(claim.name, part.request)]
        if len(several) > 1:
            listed = ", ".join(several)
            raise ClaimRefused(
                f"{claim} is used by containers {listed}: a claim is one container's; write one for each"
            )
    for container in dict.fromkeys(use.container for use in used):
        mapped = [use for use in used if use.container == container]
        parts = [part for part in claim.parts if any(use.of(claim.name, part.request) for use in mapped)]
        if len(parts) > 1:
            raise ClaimRefused(
                f"container {container} uses {len(parts)} parts of {claim}: it reaches one GPU; write a claim of one "
                "request for each container"
            )
    mine = {use.container for use in used if use.claim == claim.name}
    for using in (item for item in containers(pod) if item["name"] in mine and not claim.for_slots):
        slot = next(filter(share_of_resource, limits(using)), None)
        if slot is not None:
            raise ClaimRefused(
                f"container {using['name']} uses {claim} beside {slot}: it reaches one GPU by one of the two; keep one"
            )
    for container in (pod.get("spec") or {}).get("initContainers") or ():
        if container["name"] in mine and container.get("restartPolicy") != "Always":
            raise ClaimRefused(
                f"init container {container['name']} uses {claim}: one that ends has no preStop hook; make it a "
                "sidecar (restartPolicy: Always) or do its work in an ordinary container"
            )
    for using in (item for item in containers(pod) if item["name"] in mine):
        if grace_period_seconds(pod) >= LEAST_GRACE_SECONDS and not (using.get("lifecycle") or {}).get("preStop"):
            raise ClaimRefused(
                f"container {using['name']} uses {claim} and has no preStop hook, without which its end could harm "
                "its neighbours: gpushare's webhook adds one where it sees the claim, so make the pod again after its "
                "claim or template"
            )
    for use in used:
        if use.container in mine and use.claim != claim.name and use.claim in others:
            raise ClaimRefused(
                f"container {use.container} uses {claim} and ResourceClaim {claim.namespace}/{use.claim}: "
                "it reaches one GPU by one claim; keep one of them"
            )


def _claim_names(pod: Object) -> dict[str, str]:
    """Name within the pod's spec -> the ResourceClaim's name."""
    listed = (pod.get("spec") or {}).get("resourceClaims") or ()
    names = {item["name"]: item["resourceClaimName"] for item in listed if item.get("resourceClaimName")}
    made = (pod.get("status") or {}).get("resourceClaimStatuses") or ()
    return names | {item["name"]: item["resourceClaimName"] for item in made if item.get("resourceClaimName")}
