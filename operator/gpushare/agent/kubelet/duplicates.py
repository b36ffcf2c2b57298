"""Slots that the kubelet gave to two containers, told on their pods. Pure: readings are handed in.

We keep it from happening (see `turns`), but whoever else asks the kubelet for its list can still bring it about. Then
the share has a client more on that GPU than `clients.perGpu` says. Nobody is ended for it: the limits of each hold.
"""

from collections.abc import Iterable, Iterator, Mapping

from gpushare.agent.kubelet.holdings import ContainerName, KubeletView, Slot
from gpushare.api import names
from gpushare.api.conditions import EventReason
from gpushare.kube.client import Object
from gpushare.kube.events import Event, reference
from gpushare.kube.pods import ENDED_PHASES

LASTING_SECONDS = 4.0
"""A pod that has just ended may still be listed when its slot is another's; the API tells of its end in this time."""


class DuplicateAllocations:
    def __init__(self) -> None:
        self._since: dict[tuple[Slot, frozenset[ContainerName]], float] = {}

    def look(self, view: KubeletView, pods: Iterable[Object]) -> list[Event]:
        """What is to be told by this reading; the same is told again by the next. `pods`: this node's, by the API."""
        living = {
            (pod["metadata"]["namespace"], pod["metadata"]["name"]): pod
            for pod in pods
            if pod.get("status", {}).get("phase") not in ENDED_PHASES
        }
        found = [
            (slot, holders)
            for slot, containers in view.holders.items()
            if len(holders := frozenset(one for one in containers if one[:2] in living)) > 1
        ]
        self._since = {case: self._since.get(case, view.started) for case in found}
        lasting = [case for case in found if view.started - self._since[case] >= LASTING_SECONDS]
        return [news for slot, holders in lasting for news in _told(slot, holders, living)]


def _told(slot: Slot, holders: frozenset[ContainerName], living: Mapping[tuple[str, str], Object]) -> Iterator[Event]:
    share, uuid, number = slot
    whose = " and ".join(f"container {container} of pod {space}/{pod}" for space, pod, container in sorted(holders))
    note = (
        f"The kubelet gave slot {number} of GPU {uuid} of GpuShare {share} to {whose} "
        f"(kubernetes/kubernetes#137534): the GPU has a client more than clients.perGpu says. Each keeps to its own "
        f"limits. To end it, delete one of the pods, so that its controller makes a new one."
    )
    for pod in sorted({holder[:2] for holder in holders}):
        regarding = reference(living[pod], "v1", "Pod")
        subject = names.slot_id(uuid, number)
        yield Event(regarding, "Warning", EventReason.SLOT_GIVEN_TWICE, "Observe", note, subject)
