"""What the kubelet says about our slots, read again after every change and every few seconds.

Whether a reading of the kubelet can be true, by what the API tells of this node's pods. Pure.

A kubelet that has just started answers before it has its pods: with no error and with nothing held. It had told the
API of its running containers before, so fewer slots than those is no truth yet. Only missing slots are found, share by
share: which GPU one belongs to is the kubelet's knowledge alone.
"""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Protocol

from gpushare.agent.kubelet.holdings import HeldDevice, KubeletView, view
from gpushare.agent.kubelet.podresources import PodResourcesError
from gpushare.api import names
from gpushare.api.gpunode import ShareName
from gpushare.kube.client import Object
from gpushare.kube.pods import ENDED_PHASES

LOG = logging.getLogger(__name__)


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


class PodResourcesSource(Protocol):
    async def held(self) -> list[HeldDevice]: ...

    async def allocatable(self) -> set[tuple[str, str]]: ...


class KubeletReader:
    """`view` is the last plausible reading; None before the first, and then nothing may be offered.

    `error` says why a later one is not it: the kubelet did not answer, or what it lists cannot be true.
    """

    def __init__(
        self, source: PodResourcesSource, clock: Callable[[], float], pods: Callable[[], Iterable[Object] | None]
    ) -> None:
        """`pods`: this node's, by the API; None while they are not known, and every reading is then believed."""
        self.view: KubeletView | None = None
        self.error = ""
        self._source = source
        self._clock = clock
        self._pods = pods

    async def poll(self) -> None:
        try:
            found = await self._read()
        except PodResourcesError as error:
            self._note(str(error))
            return
        pods = self._pods()
        problem = None if pods is None else implausible(found.containers(), pods)
        self._note(problem or "")
        if problem is None:
            self.view = found

    async def _read(self) -> KubeletView:
        started = self._clock()
        # In this order: what is held is final only for slots that cannot be allocated any more.
        allocatable = await self._source.allocatable()
        held = await self._source.held()
        return view(started, allocatable, held, self.view)

    def _note(self, error: str) -> None:
        if error and error != self.error:
            LOG.warning("no new view of the kubelet's slots: %s", error)
        elif self.error and not error:
            LOG.info("the kubelet's slots are known again")
        self.error = error
