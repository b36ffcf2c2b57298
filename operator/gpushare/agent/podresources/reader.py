"""Reads from the kubelet who holds which slot, and keeps the last reading that can be true.

A kubelet that has just started answers before it has its pods: with no error and with nothing held. It had reported its
running containers to the API server before, so `validate_listing` compares the reading with this node's pods. It finds
missing devices only, resource by resource: which GPU a device belongs to is known to the kubelet alone.

A kubelet that has lost its checkpoint, as by a power cut, never lists the devices of containers that run already, and
gives them to others. After FORGOTTEN_SECONDS its reading is united with the holders that were known before: their
slots count, nobody else gets them, and the pods that should be made again are named.
"""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Protocol

from gpushare.agent.podresources.client import PodResourcesError
from gpushare.agent.podresources.holdings import (
    NO_WHOLE,
    ContainerName,
    HeldDevice,
    KubeletView,
    ShareGpu,
    Slot,
    WholeNames,
    united,
    view,
)
from gpushare.api import names
from gpushare.kube.client import Object
from gpushare.kube.pods import container_statuses, has_ended, is_running, limits
from gpushare.messages.log_on_change import LogOnChange
from gpushare.messages.wording import count_of, first_names

LOG = logging.getLogger(__name__)
LASTING_SECONDS = 10.0
"""A pod's status may be older than the kubelet's list by some seconds: only what lasts longer is worth a line."""
FORGOTTEN_SECONDS = 45.0
"""A kubelet that has restarted knows its pods again within this time, as a rule. Where it does not, nothing is lost:
the holders that were known are held to."""
MOST_NAMED = 8


def validate_listing(
    listed: Mapping[str, int], pods: Iterable[Object], whole: Collection[str] = frozenset()
) -> str | None:
    """A sentence that names a resource of which a container of this node's `pods` is missing; None: none is. Pure.

    `listed`: how many containers hold some of each resource by that reading. A slot that the kubelet gave to two
    containers counts twice: it is not missing, and the reading would be refused as long as both run. `whole`: resources
    of whole GPUs.

    A pod's status may be a moment older than the reading: until it is renewed, a container that has just ended counts
    as missing.
    """
    running = Counter(resource for pod in pods for _, resource in _running(pod, whole))
    for resource in sorted(running):
        if listed.get(resource, 0) < running[resource]:
            return (
                f"the kubelet lists {resource} of {count_of(listed.get(resource, 0), 'container')}, but "
                f"{running[resource]} of this node that ask for it run: keeping the last reading until it lists them"
            )
    return None


def lacking(view: KubeletView, pods: Iterable[Object], whole: Collection[str] = frozenset()) -> set[ContainerName]:
    """The running containers with slots or whole GPUs that the reading does not name. Pure."""
    return {container for pod in pods for container, _ in _running(pod, whole)} - view.containers()


def _running(pod: Object, whole: Collection[str]) -> Iterator[tuple[ContainerName, str]]:
    """Each running container that requests a slot of the device plugin, or whole GPUs, with the resource.

    Without ordinary init containers: the kubelet lists sidecars alone of them. Without slots that the scheduler made a
    claim of.
    """
    spec, status = pod.get("spec", {}), pod.get("status", {})
    by_claim = (status.get("extendedResourceClaimStatus") or {}).get("requestMappings") or ()
    claimed = {(item["containerName"], item["resourceName"]) for item in by_claim}
    if has_ended(pod):
        return
    running = {item["name"] for item in container_statuses(pod) if is_running(item)}
    sidecars = [item for item in spec.get("initContainers") or () if item.get("restartPolicy") == "Always"]
    for container in [*spec.get("containers", ()), *sidecars]:
        if container["name"] in running:
            for resource in limits(container):
                ours = names.share_of_resource(resource) is not None or resource in whole
                if ours and (container["name"], resource) not in claimed:
                    yield (pod["metadata"]["namespace"], pod["metadata"]["name"], container["name"]), resource


def _asking(known: KubeletView | None) -> Mapping[str, int]:
    return known.asking if known is not None else {}


def _forgotten(known: Collection[ContainerName]) -> str:
    pods = sorted({f"{namespace}/{pod}" for namespace, pod, _ in known})
    return (
        f"the kubelet has lost its record of {count_of(len(pods), 'pod')} with slots (its file"
        f" kubelet_internal_checkpoint): {first_names(pods, MOST_NAMED)}. They go on and keep their slots, which nobody"
        " else gets; delete them when it suits, so that their controllers make them again: until then this stays"
    )


class PodResourcesSource(Protocol):
    async def held(self) -> list[HeldDevice]: ...

    async def allocatable(self) -> set[tuple[str, str]]: ...


class KubeletReader:
    """`view`: the last reading that can be true; None before the first, and then nothing may be offered.

    `error`: why the latest attempt gave no new view: the kubelet did not answer, or its list cannot be true. Empty when
    it did.
    """

    def __init__(
        self,
        source: PodResourcesSource,
        clock: Callable[[], float],
        pods: Callable[[], Iterable[Object] | None],
        whole: Callable[[], WholeNames] = lambda: NO_WHOLE,
        granted: Callable[[], Mapping[ContainerName, ShareGpu]] = dict,
    ) -> None:
        """`pods`: this node's, from the API server; None: not known yet, and every reading is accepted. `whole`: the
        GPUs that are given whole now. `granted`: where containers have their slots by what an earlier agent wrote.
        """
        self.view: KubeletView | None = None
        self.error = ""
        self.forgotten = ""
        """Which pods hold devices that the kubelet has forgotten, and what to do; empty: none."""
        self._granted = granted
        self._lacking_since: float | None = None
        self._source = source
        self._clock = clock
        self._pods = pods
        self._whole = whole
        self._failing_since: float | None = None
        self._believed = False
        """Whether `view` was accepted without knowing this node's pods."""
        self._problems = LogOnChange(LOG)

    async def poll(self) -> None:
        whole = self._whole()
        resources = {resource for resource, _ in whole}
        try:
            reading = await self._read(whole)
        except PodResourcesError as error:
            self._note(str(error))
            return
        pods = self._pods()
        problem = None if pods is None else self._problem(reading, pods, resources)
        self.forgotten = ""
        if problem is None:
            self._lacking_since = None
        elif pods is not None and (known := self._known_of(reading, lacking(reading, pods, resources))):
            reading, problem, self.forgotten = united(reading, known), None, _forgotten(known)
        self._note(problem or "")
        if problem is None:
            self.view, self._believed = reading, pods is None
        elif self._believed and pods is not None and validate_listing(_asking(self.view), pods, resources) is not None:
            # As after a restart together with the kubelet: its first list, too, was one before it knew its pods.
            self.view = None

    def _problem(self, reading: KubeletView, pods: Iterable[Object], whole: Collection[str]) -> str | None:
        """Also where the counts agree, since a container has started of which the API server does not know yet."""
        known = self.view.containers() if self.view is not None else frozenset()
        lost = sorted(lacking(reading, pods, whole) & known)
        return validate_listing(reading.asking, pods, whole) or (
            f"the kubelet does not list {'/'.join(lost[0])} any more, which runs: keeping the last reading"
            if lost
            else None
        )

    def _known_of(
        self, reading: KubeletView, missing: Collection[ContainerName]
    ) -> Mapping[ContainerName, Collection[Slot]]:
        """The slots of containers that the reading lacks; empty: not all are known, or it may still list them."""
        if self._lacking_since is None:
            self._lacking_since = reading.started
        if reading.started - self._lacking_since < FORGOTTEN_SECONDS:
            return {}
        known: dict[ContainerName, set[Slot]] = {}
        for slot, containers in (self.view.holders if self.view is not None else {}).items():
            for container in containers:
                known.setdefault(container, set()).add(slot)
        for container, place in self._granted().items() if set(missing) - known.keys() else ():
            known.setdefault(container, {(*place, -1)})
        return {container: known[container] for container in missing} if set(missing) <= known.keys() else {}

    async def _read(self, whole: WholeNames) -> KubeletView:
        started = self._clock()
        # In this order: what is held is final only for slots that cannot be allocated any more.
        allocatable = await self._source.allocatable()
        held = await self._source.held()
        return view(started, allocatable, held, self.view, whole)

    def _note(self, error: str) -> None:
        self.error = error
        if not error:
            self._failing_since = None
            self._problems.clear(recovery="the kubelet's slots are known again")
            return
        if self._failing_since is None:
            self._failing_since = self._clock()
        if self._clock() - self._failing_since >= LASTING_SECONDS:
            self._problems.log("no new view of the kubelet's slots: %s", error)
