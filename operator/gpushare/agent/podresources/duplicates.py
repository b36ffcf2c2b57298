"""Events for slots that the kubelet gave to two containers. Pure: readings are arguments.

We avoid it (see `allocation_lock`), but any other reader of the kubelet's list can still cause it. Then the GPU has one
client more than the share's `clients.perGpu`. No client is ended for it: the limits of each hold.
"""

from collections.abc import Iterable, Iterator, Mapping

from gpushare.agent.podresources.holdings import ContainerName, KubeletView, Slot
from gpushare.api import names
from gpushare.api.conditions import EventReason
from gpushare.kube.client import Object
from gpushare.kube.events.event import Event, reference
from gpushare.kube.pods import has_ended

LASTING_SECONDS = 4.0
"""A pod that has just ended may still be listed when another has its slot; the API shows its end within this time."""


class DuplicateAllocations:
    def __init__(self) -> None:
        self._since: dict[tuple[Slot, frozenset[ContainerName]], float] = {}

    def look(self, view: KubeletView, pods: Iterable[Object]) -> list[Event]:
        """The events of this reading; the next one gives the same again. `pods`: this node's, from the API server."""
        running = {(pod["metadata"]["namespace"], pod["metadata"]["name"]): pod for pod in pods if not has_ended(pod)}
        shared = [
            (slot, holders)
            for slot, containers in view.holders.items()
            if len(holders := frozenset(container for container in containers if container[:2] in running)) > 1
        ]
        self._since = {case: self._since.get(case, view.started) for case in shared}
        lasting = [case for case in shared if view.started - self._since[case] >= LASTING_SECONDS]
        return [event for slot, holders in lasting for event in _events(slot, holders, running, slot[:2] in view.whole)]


def _events(
    slot: Slot, holders: frozenset[ContainerName], pods: Mapping[tuple[str, str], Object], whole: bool
) -> Iterator[Event]:
    share, uuid, number = slot
    whose = " and ".join(f"container {container} of pod {space}/{pod}" for space, pod, container in sorted(holders))
    what = f"GPU {uuid}" if whole else f"slot {number} of GPU {uuid}"
    follows = (
        "each of them uses it as if it were alone"
        if whole
        else "the GPU has a client more than clients.perGpu says. Each keeps to its own limits"
    )
    note = (
        f"The kubelet gave {what} of GpuShare {share} to {whose} (kubernetes/kubernetes#137534): {follows}. "
        "To end it, delete one of the pods, so that its controller makes a new one."
    )
    for pod in sorted({holder[:2] for holder in holders}):
        regarding = reference(pods[pod], "v1", "Pod")
        subject = names.slot_id(uuid, number)
        yield Event(regarding, "Warning", EventReason.DUPLICATE_ALLOCATION, "Observe", note, subject)
