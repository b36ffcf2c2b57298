"""What a ResourceClaim asks for, and which of our devices it has got."""

from gpushare.api import names
from gpushare.kube.resources import Object


def allocation_results(claim: Object) -> list[Object]:
    """A claim's allocated devices of our driver; empty while it is pending."""
    allocation = (claim.get("status") or {}).get("allocation") or {}
    results = (allocation.get("devices") or {}).get("results") or []
    return [result for result in results if result.get("driver") == names.DRA_DRIVER]


def requested_classes(claim: Object) -> list[str]:
    """The DeviceClasses that a claim names, alternatives included."""
    return [str(request.get("deviceClassName") or "") for request in requests_of(claim)]


def requests_of(claim: Object) -> list[Object]:
    """What a claim asks for, alternatives included, without the requests' names."""
    requests = ((claim.get("spec") or {}).get("devices") or {}).get("requests") or []
    return [choice for request in requests for choice in _choices(request)]


def _choices(request: Object) -> list[Object]:
    return [request["exactly"]] if request.get("exactly") else list(request.get("firstAvailable") or [])
