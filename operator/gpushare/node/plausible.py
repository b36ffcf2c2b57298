"""Whether a reading of the kubelet can be true, by what the API tells of this node's pods. Pure.

A kubelet that has just started answers before it has its pods: with no error and with nothing held. It had told the
API of its running containers before, so fewer slots than those is no truth yet. Only missing slots are found, share by
share: which GPU one belongs to is the kubelet's knowledge alone.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping

from gpushare.api import names
from gpushare.api.gpunode import ShareName
from gpushare.kube.client import Object
from gpushare.node.departing import ENDED_PHASES


def implausible(listed: Mapping[ShareName, int], pods: Iterable[Object]) -> str | None:
    """What a reading misses of the slots of this node's `pods`, as a sentence; None when nothing.

    `listed`: how many slots of each share containers hold by that reading. A slot that the kubelet gave to two
    containers counts twice: it is no slot that is missing, and nothing would end the disbelief while both run.

    A pod's status may be a moment older than the reading: a container that has just ended is then missed for so long.
    """
    running = Counter(share for pod in pods for share in _running(pod))
    for share in sorted(running):
        if listed.get(share, 0) < running[share]:
            return (
                f"the kubelet lists {listed.get(share, 0)} slots of {names.slot_resource(share)}, but {running[share]} "
                "containers of this node that ask for one run: keeping the last reading until it lists them"
            )
    return None


def _running(pod: Object) -> Iterator[ShareName]:
    """The share of each running container that asks for a slot of the kubelet's.

    Ordinary init containers are passed over: the kubelet lists sidecars alone of them. So are slots that the scheduler
    made a claim of.
    """
    spec, status = pod.get("spec", {}), pod.get("status", {})
    by_claim = (status.get("extendedResourceClaimStatus") or {}).get("requestMappings") or ()
    claimed = {(item["containerName"], item["resourceName"]) for item in by_claim}
    if status.get("phase") in ENDED_PHASES:
        return
    told = [*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ())]
    running = {item["name"] for item in told if (item.get("state") or {}).get("running") is not None}
    sidecars = [item for item in spec.get("initContainers") or () if item.get("restartPolicy") == "Always"]
    for container in [*spec.get("containers", ()), *sidecars]:
        if container["name"] in running:
            yield from _asked_for(container, claimed)


def _asked_for(container: Object, claimed: Collection[tuple[str, str]]) -> Iterator[ShareName]:
    limits = (container.get("resources") or {}).get("limits") or {}
    for resource, quantity in limits.items():
        share = names.share_of_resource(resource)
        if share is not None and str(quantity) != "0" and (container["name"], resource) not in claimed:
            yield share
