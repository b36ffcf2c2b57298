"""Events about what clients with a class say of themselves. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gpushare.api.client_class import ClientClass
from gpushare.api.conditions import EventReason
from gpushare.api.gpunode import ShareName, Uuid
from gpushare.kube.events.event import Event, EventType, reference
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
        self._unsealed: dict[Uuid, set[_Process]] = {}

    def update(self, state: BrokerState, share: ShareName, pods: Mapping[str, Pod]) -> list[Event]:
        """The events of what is in broker.json. `pods`: this node's, by the uid in the names of their cgroups."""
        gave_way = _given_way_to(state)
        before, self._gave_way[state.uuid] = self._gave_way.get(state.uuid, gave_way), gave_way
        unsealed = {
            (item.pid, item.started)
            for item in state.activity
            if item.client_class == ClientClass.PROTECTED and not item.sealed
        }
        never_sealed = unsealed & self._unsealed.get(state.uuid, set())
        self._unsealed[state.uuid] = unsealed
        held_up = {process for process, seconds in gave_way.items() if seconds > before.get(process, 0.0)}
        return [
            event
            for item in state.activity
            if (pod := pods.get(item.pod_uid)) is not None
            for event in _events(
                item,
                _About(state.uuid, share, pod),
                holds_up=(item.pid, item.started) in held_up,
                never_sealed=(item.pid, item.started) in never_sealed,
            )
        ]

    def keep(self, present: Mapping[Uuid, object]) -> None:
        """Forgets every other GPU."""
        self._gave_way = {uuid: known for uuid, known in self._gave_way.items() if uuid in present}
        self._unsealed = {uuid: known for uuid, known in self._unsealed.items() if uuid in present}


def _given_way_to(state: BrokerState) -> dict[_Process, float]:
    """Seconds that the best-effort processes together gave way, by protected process."""
    total: dict[_Process, float] = {}
    for item in state.activity:
        for to in item.gave_way_to:
            total[to.pid, to.started] = total.get((to.pid, to.started), 0.0) + to.seconds
    return total


@dataclass(frozen=True, slots=True)
class _About:
    uuid: Uuid
    share: ShareName
    pod: Pod

    def event(
        self, item: ClientActivity, reason: EventReason, what: str, kind: EventType = "Warning", key: str = ""
    ) -> Event:
        """`what`: the note, behind whose process it is about."""
        subject = f"{self.uuid}/{item.container}"
        note = (
            f"GPU {self.uuid} of GpuShare {self.share}: a process of container {item.container} of pod "
            f"{full_name(self.pod)} {what}"
        )
        regarding = reference(dict(self.pod), "v1", "Pod")
        return Event(regarding, kind, reason, "Observe", note, subject, key=f"{subject}/{key}")


def _events(item: ClientActivity, about: _About, *, holds_up: bool, never_sealed: bool) -> Iterator[Event]:
    if item.fault or never_sealed:
        why = item.fault or "it is Protected, and its page of being busy is not sealed: nobody gives way to it"
        what = (
            f"has invalid pages: {why}. Use the libraries that the node gives the container, and nothing else on their "
            "memory; to seal a page takes Linux 5.1."
        )
        yield about.event(item, EventReason.ACTIVITY_INVALID, what)
    if item.client_class == ClientClass.BEST_EFFORT:
        yield from _long_kernels(item, about)
    elif item.busy_share is not None and item.busy_share > ALWAYS_BUSY and holds_up:
        what = (
            "is Protected, and was busy all the last minute while others gave way to it: they are left their floor of "
            "the time alone. Where it computes all the time, Normal is its class."
        )
        yield about.event(item, EventReason.ALWAYS_BUSY, what)


def _long_kernels(item: ClientActivity, about: _About) -> Iterator[Event]:
    """A kernel that is under way is waited for: how long its kernels are is what a protected neighbour meets."""
    longest = max((kernel.seconds for kernel in item.longest), default=0.0)
    if longest <= LONG_KERNEL_SECONDS:
        return
    kernels = ", ".join(f"{kernel.name} {kernel.seconds * 1000:.1f} ms" for kernel in item.longest)
    what = (
        f"is BestEffort, and its longest kernels take {kernels}: as long a protected client may have to wait for one. "
        "Fewer threads bound how many SMs it meets meanwhile."
    )
    doubled = str(int(longest / LONG_KERNEL_SECONDS).bit_length())
    yield about.event(item, EventReason.LONG_KERNELS, what, kind="Normal", key=doubled)
