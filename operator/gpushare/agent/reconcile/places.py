"""Who has a place on a GPU whose share has a queue, and who waits for one, as the attach broker says it. Pure.

Guarantee: nobody has a place, and nobody gets one, only where the order of events proves it. grants.json closes the
GPU; what the broker and the supervisor wrote after that shows no holder and no context.
"""

from collections.abc import Iterable, Iterator, Mapping

from gpushare.agent.reconcile.daemon_files import DaemonFiles
from gpushare.api.gpunode import GpuPlaces, ShareName
from gpushare.kube.pods import Pod, full_name
from gpushare.mps.wire import BrokerState, PlaceHolder, QueuedContainer, is_fresh

FOLLOWED_SECONDS = 5.0
"""The broker looks at grants.json twice a second. What it wrote so long afterwards it wrote as that file says."""


def gpu_places(state: BrokerState | None, share: ShareName, pods: Mapping[str, Pod]) -> GpuPlaces | None:
    """None: the GPU's share has no queue, or its broker has not read that yet. `pods`: this node's, by the uid in the
    names of their cgroups; a container whose pod is not among them is counted and not named.
    """
    if state is None or state.places is None:
        return None
    return GpuPlaces(
        uuid=state.uuid,
        share=share,
        limit=state.places.limit,
        used=len(state.places.held),
        waiting=max(state.waiting, len(state.queue)),
        held=list(_named(state.places.held, pods)),
        queue=list(_named(state.queue, pods)),
    )


def nobody_has_a_place(item: DaemonFiles, closed_since: float | None, now: float) -> bool:
    """`closed_since`: the moment since which grants.json lets nobody in, on the clock of `now`, CLOCK_BOOTTIME seconds;
    None: it lets somebody in.
    """
    broker, state = item.broker, item.state
    if closed_since is None or broker is None or broker.places is None or state is None:
        return False
    since = closed_since + FOLLOWED_SECONDS
    told = all(since < at and is_fresh(at, now) for at in (broker.heartbeat, state.heartbeat))
    return told and not broker.places.held and not state.contexts


def _named(containers: Iterable[PlaceHolder | QueuedContainer], pods: Mapping[str, Pod]) -> Iterator[str]:
    for item in containers:
        if item.pod_uid in pods:
            yield f"{full_name(pods[item.pod_uid])}/{item.container}"
