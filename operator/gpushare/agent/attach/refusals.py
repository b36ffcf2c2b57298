"""Events about processes that an attach broker refused. Pure: states are handed in, times in seconds."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gpushare.api import names
from gpushare.api.conditions import EventReason
from gpushare.api.gpunode import ShareName, Uuid
from gpushare.kube.events.event import Event, reference
from gpushare.kube.pods import Pod, full_name
from gpushare.mps.wire import AttachRefusal, BrokerState, RefusedAttach

WHAT_TO_DO: Mapping[RefusedAttach, str] = {
    RefusedAttach.NO_GRANT: "Only a container with a slot or a claim of this GPU may use it: give this one its own.",
    RefusedAttach.TOO_MANY_PROCESSES: "Start fewer processes that use CUDA, or have clients.processes of the GpuShare "
    "raised.",
    RefusedAttach.TOO_MANY_CONTEXTS: "Make fewer CUDA contexts at a time in one container: most programs need "
    "one for each process.",
    RefusedAttach.TOO_MANY_PROTECTED: "Wait until another protected client of this GPU has ended, run the pod as class "
    "Normal (annotation gpushare.dev/class), or have clients.classes.protected.perGpu of the GpuShare raised.",
    RefusedAttach.NO_PLACE: "Start the process again later, end a client of this GPU that nobody needs, or have "
    "clients.queue.maxWait or clients.perGpu of the GpuShare raised.",
    RefusedAttach.GPU_CLOSED: "Start the process again once the GPU takes clients: kubectl gpushare status shows it.",
    RefusedAttach.STALLED: "Do not stop or freeze a process while it makes its CUDA context: all others wait for it.",
    RefusedAttach.COMMAND: "No container may control the MPS daemon: remove the call of nvidia-cuda-mps-control.",
    RefusedAttach.PROTOCOL: "Use the CUDA driver library that the node gives the container, and no other program on "
    "its MPS socket.",
    RefusedAttach.SERVER_HUNG: "Look at what this process did while it made its CUDA context: nobody can attach to the "
    "GPU until its MPS server answers again.",
    RefusedAttach.ENDED: "End this process and start another one, as a restart of the container does: one "
    "whose contexts were ended gets no other, whatever program it runs. The event ClientTerminated says why.",
    RefusedAttach.CONNECTIONS: "Have fewer processes of this pod connect to the GPU's MPS at a time, and end what "
    "connects in a loop.",
    RefusedAttach.FAILED: "Start the process again where it has ended. The node lacks what the message names: look at "
    "the log of the container broker of the node's MPS pod.",
    RefusedAttach.OTHER: "The MPS pod is of another release than the agent, whose documentation has this reason.",
}

_Key = tuple[str, str, RefusedAttach]


@dataclass(frozen=True, slots=True)
class NewRefusal:
    """`count`: how many since the last call; 0: they were counted by an earlier agent, or by none."""

    share: ShareName
    reason: RefusedAttach
    count: int
    events: tuple[Event, ...]


class RefusalReports:
    """Each container and reason is one topic of events, which later refusals count up."""

    def __init__(self, node: str, started: float) -> None:
        """`started`: when this agent did, in CLOCK_BOOTTIME seconds: what was refused before is no new occurrence, and
        is reported only if no earlier agent has.
        """
        self._node = node
        self._started = started
        self._seen: dict[Uuid, dict[_Key, AttachRefusal]] = {}

    def update(self, state: BrokerState, share: ShareName, pods: Mapping[str, Pod]) -> list[NewRefusal]:
        """What is new in broker.json. `pods`: this node's, by the uid in the names of their cgroups."""
        before = self._seen.get(state.uuid, {})
        self._seen[state.uuid] = {_key(refusal): refusal for refusal in state.refusals}
        new = []
        for key, refusal in self._seen[state.uuid].items():
            known = before.get(key)
            if known is not None and refusal.at <= known.at:
                continue
            again = refusal.at >= self._started
            # A lower count is that of a broker that started anew, or one that had forgotten the container.
            more = refusal.count - (known.count if known is not None and known.count < refusal.count else 0)
            events = tuple(self._events(refusal, state.uuid, share, pods.get(refusal.pod_uid), happened=again))
            new.append(NewRefusal(share, refusal.reason, more if again else 0, events))
        return new

    def keep(self, present: Mapping[Uuid, object]) -> None:
        """Forgets every other GPU."""
        self._seen = {uuid: refusals for uuid, refusals in self._seen.items() if uuid in present}

    def _events(
        self, refusal: AttachRefusal, uuid: Uuid, share: ShareName, pod: Pod | None, *, happened: bool
    ) -> Iterator[Event]:
        gpu_node = {"apiVersion": names.API_VERSION, "kind": "GpuNode", "name": self._node}
        regarding = gpu_node if pod is None else reference(dict(pod), "v1", "Pod")
        who = _who(refusal, pod)
        subject = f"{uuid}/{refusal.reason.value}/{refusal.pod_uid}/{refusal.container or refusal.container_id}"
        note = (
            f"GPU {uuid} of GpuShare {share}: {who} could not attach ({refusal.reason.value}): {refusal.message}. "
            f"{WHAT_TO_DO[refusal.reason]}"
        )
        reason = EventReason.ATTACH_REFUSED
        yield Event(regarding, "Warning", reason, "Attach", note, subject, key=subject, happened=happened)
        if refusal.reason is RefusedAttach.SERVER_HUNG:
            note = f"GPU {uuid} of GpuShare {share}: {who} hung the MPS server while it attached: {refusal.message}."
            reason = EventReason.SERVER_HUNG
            yield Event(gpu_node, "Warning", reason, "Attach", note, subject, key=subject, happened=happened)


def _key(refusal: AttachRefusal) -> _Key:
    return refusal.pod_uid, refusal.container_id or refusal.container, refusal.reason


def _who(refusal: AttachRefusal, pod: Pod | None) -> str:
    """Who was refused, such as `a process of container app of pod team/pod-1`."""
    if not refusal.pod_uid:
        return (
            "a process of no pod" if refusal.reason is not RefusedAttach.FAILED else "a process that is not known yet"
        )
    if refusal.reason is RefusedAttach.CONNECTIONS:  # all containers of a pod count as one
        return f"a process of pod {full_name(pod) if pod is not None else refusal.pod_uid}"
    container = f"container {refusal.container}" if refusal.container else "an unknown container"
    if not refusal.container and refusal.container_id:
        container = f"container {refusal.container_id[:12]}"
    if pod is None:
        return f"a process of {container} of pod {refusal.pod_uid}, which the API does not know,"
    return f"a process of {container} of pod {full_name(pod)}"
