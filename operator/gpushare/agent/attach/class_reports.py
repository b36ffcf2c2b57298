"""Events about what clients with a class say of themselves. Pure."""

from collections.abc import Iterator, Mapping

from gpushare.api.client_class import ClientClass
from gpushare.api.conditions import EventReason
from gpushare.api.gpunode import ShareName, Uuid
from gpushare.kube.events.event import Event, reference
from gpushare.kube.pods import Pod, full_name
from gpushare.mps.wire import BrokerState, ClientActivity

ALWAYS_BUSY = 0.95
"""Of a minute."""
LONG_KERNEL_SECONDS = 0.002
"""What best effort may have under way while nobody protected is active: a longer kernel is a single launch."""

_Process = tuple[int, int]


class ClassReports:
    """What is so is told as a state: the recorder writes it once, as long as it stays."""

    def __init__(self) -> None:
        self._gave_way: dict[Uuid, dict[_Process, float]] = {}

    def update(self, state: BrokerState, share: ShareName, pods: Mapping[str, Pod]) -> list[Event]:
        """The events of what is in broker.json. `pods`: this node's, by the uid in the names of their cgroups."""
        gave_way = _given_way_to(state)
        before, self._gave_way[state.uuid] = self._gave_way.get(state.uuid, gave_way), gave_way
        held_up = {process for process, seconds in gave_way.items() if seconds > before.get(process, 0.0)}
        return [
            event
            for item in state.activity
            if (pod := pods.get(item.pod_uid)) is not None
            for event in _events(item, state.uuid, share, pod, holds_up=(item.pid, item.started) in held_up)
        ]

    def keep(self, present: Mapping[Uuid, object]) -> None:
        """Forgets every other GPU."""
        self._gave_way = {uuid: known for uuid, known in self._gave_way.items() if uuid in present}


def _given_way_to(state: BrokerState) -> dict[_Process, float]:
    """Seconds that the best-effort processes together gave way, by protected process."""
    total: dict[_Process, float] = {}
    for item in state.activity:
        for to in item.gave_way_to:
            total[to.pid, to.started] = total.get((to.pid, to.started), 0.0) + to.seconds
    return total


def _events(item: ClientActivity, uuid: Uuid, share: ShareName, pod: Pod, *, holds_up: bool) -> Iterator[Event]:
    who = f"GPU {uuid} of GpuShare {share}: a process of container {item.container} of pod {full_name(pod)}"
    regarding, subject = reference(dict(pod), "v1", "Pod"), f"{uuid}/{item.container}"
    if item.fault:
        note = (
            f"{who} writes of its activity what cannot be true ({item.fault}), so none of its figures count. Use the "
            "libraries that the node gives the container, and nothing else on their memory."
        )
        yield Event(regarding, "Warning", EventReason.ACTIVITY_INVALID, "Observe", note, subject, key=subject)
    if item.client_class != ClientClass.PROTECTED:
        yield from _long_kernels(item, who, regarding, subject)
    elif item.busy_share is not None and item.busy_share > ALWAYS_BUSY and holds_up:
        note = (
            f"{who} is Protected, and was busy all the last minute while others gave way to it: they are left their "
            "floor of the time alone. Where it computes all the time, Normal is its class."
        )
        yield Event(regarding, "Warning", EventReason.ALWAYS_BUSY, "Observe", note, subject, key=subject)


def _long_kernels(item: ClientActivity, who: str, regarding: dict[str, object], subject: str) -> Iterator[Event]:
    """A kernel that is under way is waited for: how long its kernels are is what a protected neighbour meets."""
    longest = max((kernel.seconds for kernel in item.longest), default=0.0)
    if item.client_class != ClientClass.BEST_EFFORT or longest <= LONG_KERNEL_SECONDS:
        return
    kernels = ", ".join(f"{kernel.name} {kernel.seconds * 1000:.1f} ms" for kernel in item.longest)
    note = (
        f"{who} is BestEffort, and its longest kernels take {kernels}: as long a protected client may have to wait for "
        "one. Fewer threads bound how many SMs it meets meanwhile."
    )
    doubled = f"{subject}/{int(longest / LONG_KERNEL_SECONDS).bit_length()}"
    yield Event(regarding, "Normal", EventReason.LONG_KERNELS, "Observe", note, subject, key=doubled)
