"""How large an object may be that is judged: far above what anybody needs, far below what would take long.

A review costs in proportion to what is counted here. It is refused before anything is looked up for it.
"""

from collections.abc import Collection, Iterator
from typing import Any

from gpushare.webhook.review import Denied, Problems, Reason, listed, mapped

MOST_CONTAINERS = 256
"""The containers of a pod, init containers included. Each gets about 1 KiB of changes."""
MOST_RESOURCES = 64
"""The resources of a container, or capacities of a claim's request. Each is read as a quantity."""
MOST_SHARES = 32
"""The GpuShares that one pod or claim may name. Each may cost a request to the API server."""
MOST_CLAIMS = 64
"""The claims of a pod. Each costs a request to the API server."""
MOST_REQUESTS = 32
"""The requests of a claim: Kubernetes' own limit, which it checks only after us."""
MOST_ALTERNATIVES = 8
"""The alternatives of a claim's request: Kubernetes' own limit, too."""


def pod_too_large(pod: dict[str, Any]) -> Denied | None:
    """Why the pod is too large to be judged; None: it is not."""
    spec = mapped(pod, "spec")
    containers = [*listed(spec, "initContainers"), *listed(spec, "containers")]
    count = len(containers)
    resources = max((_resources(container) for container in containers), default=0)
    return _denied(
        _excess("spec.containers", count, "containers and init containers", MOST_CONTAINERS, "more pods"),
        _excess("spec.resourceClaims", len(listed(spec, "resourceClaims")), "claims", MOST_CLAIMS, "more pods"),
        _excess("spec.containers.resources", resources, "resources of a container", MOST_RESOURCES, "more containers"),
    )


def too_many_shares(shares: Collection[str]) -> Denied | None:
    """Why the GpuShares that a pod or claim names are too many to be judged; None: they are not."""
    return _denied(_excess("spec", len(shares), "GpuShares", MOST_SHARES, "more pods or claims"))


def claim_too_large(spec: dict[str, Any]) -> Denied | None:
    """Why the claim is too large to be judged; None: it is not. `spec`: a claim's, or that of a template's claims."""
    requests = listed(mapped(spec, "devices"), "requests")
    alternatives = max((len(listed(request, "firstAvailable")) for request in requests), default=0)
    choices = [choice for request in requests for choice in listed(request, "firstAvailable")]
    choices += [mapped(request, "exactly") for request in requests]
    capacities = max((len(mapped(mapped(choice, "capacity"), "requests")) for choice in choices), default=0)
    field = "spec.devices.requests"
    return _denied(
        _excess(field, len(requests), "requests", MOST_REQUESTS, "more claims"),
        _excess(f"{field}.firstAvailable", alternatives, "alternatives", MOST_ALTERNATIVES, "fewer"),
        _excess(f"{field}.exactly.capacity.requests", capacities, "capacities", MOST_RESOURCES, "fewer"),
    )


def _resources(container: dict[str, Any]) -> int:
    resources = mapped(container, "resources")
    return max(len(listed(resources, key)) for key in ("limits", "requests", "claims"))


def _denied(*excesses: Iterator[str]) -> Denied | None:
    problems = Problems()
    for sentences in excesses:
        problems.add(Reason.SIZE, sentences)
    return problems.denied() if problems else None


def _excess(field: str, count: int, what: str, most: int, instead: str) -> Iterator[str]:
    if count > most:
        yield f"{field}: {count} {what}: at most {most} are reviewed; write {instead}"
