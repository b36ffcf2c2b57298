"""Events that say which GPU a container got, how much of it, and beside how many others. Pure.

An event needs no right over pods, which an annotation would; and a tenant may read it without any right to GpuNodes,
which name other tenants.

Guarantees: no neighbour is named. One event for each start of a container; a restarted agent repeats none.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import datetime, timedelta

from gpushare.agent.observe.granted import container_grant
from gpushare.agent.observe.unused import RunningPart
from gpushare.agent.podresources.holdings import ContainerName
from gpushare.api.conditions import EventReason
from gpushare.api.gpunode import ShareName, Uuid
from gpushare.api.gpushare import GpuShare
from gpushare.api.quantity import format_mib
from gpushare.grant.model import Grant
from gpushare.kube.client import Object
from gpushare.kube.events.event import Event, reference
from gpushare.kube.pods import containers
from gpushare.messages.wording import count_of

DOWNTIME = timedelta(minutes=1)
"""What started so long before this agent began may not have been reported by the one before it."""


class Placements:
    def __init__(self, began: datetime) -> None:
        """`began`: when this agent did."""
        self._from = began - DOWNTIME
        self._reported: frozenset[RunningPart] = frozenset()

    def look(
        self,
        parts: Collection[RunningPart],
        pods: Mapping[str, Object],
        shares: Mapping[ShareName, GpuShare],
        claimed: Callable[[], Mapping[ContainerName, Grant]],
    ) -> list[Event]:
        """The events of parts that are new. `parts`: all that run now. `pods`: by uid. `claimed` is asked for them."""
        new = [part for part in parts if part not in self._reported and part.started and part.started >= self._from]
        self._reported = frozenset(parts)
        if not new:
            return []
        count, grants = Counter(part.uuid for part in parts), claimed()
        return [event for part in new for event in _events(part, count, pods, shares, grants)]


def _events(
    part: RunningPart,
    count: Mapping[Uuid, int],
    pods: Mapping[str, Object],
    shares: Mapping[ShareName, GpuShare],
    claimed: Mapping[ContainerName, Grant],
) -> Iterator[Event]:
    pod, name = pods.get(part.pod_uid), part.container[2]
    container = next((item for item in containers(pod) if item["name"] == name), None) if pod is not None else None
    if pod is None or container is None:
        return
    granted = container_grant(container, part.share, shares.get(part.share), claimed.get(part.container))
    if granted.grant is None:
        return
    grant, others = granted.grant, count[part.uuid] - 1
    processes = count_of(grant.processes, "process")
    beside = "no other container" if others == 0 else count_of(others, "other container")
    most = f" ({format_mib(grant.limit_mib)} at most)" if grant.burst_mib else ""
    note = (
        f"Container {name} got {grant.threads}% of the SMs, {format_mib(grant.memory_mib)} of memory{most} and"
        f" {processes} on GPU {part.uuid}, by GpuShare {part.share}; "
        f"{beside} {'has a part' if others < 2 else 'have parts'} of that GPU now"
    )
    # The number of neighbours moves; the start is what makes the event another one.
    yield Event(
        reference(pod, "v1", "Pod"),
        "Normal",
        EventReason.GPU_PART_GRANTED,
        "Start",
        note,
        subject=name,
        key=f"{part.uuid} {part.started}",
    )
