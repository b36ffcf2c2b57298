"""Containers and pods that the kubelet ends by itself, as its events and the containers' preStop hooks report them.

Function names are those of Kubernetes 1.37, below pkg/kubelet. Such a termination shows in no pod's status until no
container runs any more (`mergePodStatus`). But the kubelet records an event `Killing` for each container before it runs
the preStop hook and sends SIGTERM (`killContainer`); its message names a failed probe or hook, a changed definition or
a resize. Why it ends a pod as a whole, an event before that says, for the reasons in POD_REASONS. No event about the
pod says so when the node shuts down (`podManager.killPods`) or when a pod's sandbox is made anew.

Guarantees: an event counts only for the pod that it names in full, in the event's own namespace. Anybody who may create
events can write one like these, so a policy of ours refuses them to all but nodes. A namespace is watched only while a
pod with clients of this node is in it, which the kubelet has taken up, so there are never more watches than the node
takes pods. The API server keeps no cache of events: watching all of a cluster's from every node would read them from
etcd once for each node.

Does not guarantee that an event comes, or in time: of one pod the kubelet writes at most 25 at once and then one in
five minutes (client-go's spam filter). The preStop hook tells of every stop: the program `pre-stop`
(native/pre_stop.c), in the place of a plain sleep where the webhook knows that all nodes have it, tells the attach
broker, which writes it to broker.json. A broker is no word but about containers that hold a part of its own GPU. What a
container's processes say by themselves ends clients of that container alone, as its end would.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from gpushare.agent.podresources.holdings import ContainerName, ShareGpu
from gpushare.api.gpunode import Uuid
from gpushare.api.timestamps import parse_timestamp
from gpushare.kube.cache.reflector import Follower
from gpushare.kube.client import CORE_EVENTS, Kube, Object
from gpushare.kube.pods import (
    Pod,
    containers,
    full_name,
    grace_period_seconds,
    is_taken_up,
    may_have_clients,
    mirrored_uid,
    phase,
)
from gpushare.mps.wire import BrokerState, StoppingContainer, is_fresh

LOG = logging.getLogger(__name__)

SELECTOR = "involvedObject.kind=Pod,source=kubelet," + ",".join(
    f"reason!={reason}" for reason in ("Scheduled", "Pulling", "Pulled", "Created", "Started", "BackOff", "Unhealthy")
)
"""A selector cannot say "or", so it leaves out the frequent reasons; `kubelet_kill` picks from the rest."""
EVICTION_SECONDS = 1.0
"""Grace of an eviction for pressure (`immediateEvictionGracePeriodSeconds`), and of a rejected pod. A soft eviction may
give more, but no event says so."""

POD_REASONS: Mapping[str, str] = {
    "Evicted": "is evicted by the kubelet",  # evictPod
    "Preempting": "is preempted by the kubelet for a critical pod",  # evictPodsToFreeRequests
    "DeadlineExceeded": "has been active for longer than its activeDeadlineSeconds",  # activeDeadlineHandler
}
"""The reasons with which the kubelet ends a pod as a whole; each completes "its pod …"."""
REJECTIONS = ("NodeAffinity", "TopologyAffinityError", "UnexpectedAdmissionError")
LACK = "OutOf"
"""A restarted kubelet admits the pods of its node anew. A pod that no longer fits fails, and what still runs of it is
killed within two seconds (`HandlePodAdditions`, `HandlePodCleanups`). A reason that begins with LACK names a resource,
slots included, even where the node's labels do not fit (`generalFilter`). If a condition of the node is the cause, the
reason is Evicted."""
RESTARTED_WITH_ALL = "killing"
"""The message for a container that the kubelet restarts because another one's restart rule restarts all of them
(`SyncPod`): without any grace, and without its preStop hook."""

_CONTAINER_PATHS = ("spec.containers{", "spec.initContainers{", "spec.ephemeralContainers{")


@dataclass(frozen=True, slots=True)
class KubeletKill:
    """`reason`: the event's. `container` empty: the whole pod. `at`: seconds since 1970 by this node's own clock."""

    pod_uid: str
    namespace: str
    pod: str
    container: str
    reason: str
    message: str
    at: float

    @property
    def shortens(self) -> bool:
        """Whether it takes the rest of its time from a pod that is being deleted (`calculateEffectiveGracePeriod`)."""
        return self.reason == "Evicted" or self.rejects

    @property
    def rejects(self) -> bool:
        """Whether a restarted kubelet did not admit the pod again."""
        return _is_rejection(self.reason)


def kubelet_kill(event: Mapping[str, Any], node: str) -> KubeletKill | None:
    """Reads an event of core/v1. None: it is another node's, or about something else.

    KeyError, TypeError, ValueError: the kubelet does not write such an event.
    """
    source, about = event.get("source") or {}, event.get("involvedObject") or {}
    if (source.get("component"), source.get("host")) != ("kubelet", node) or about.get("kind") != "Pod":
        return None
    reason = str(event.get("reason"))
    whole_pod = reason in POD_REASONS or _is_rejection(reason)
    container = "" if whole_pod else _container(str(about.get("fieldPath") or ""))
    if not (whole_pod or (reason == "Killing" and container)):
        return None
    return KubeletKill(
        pod_uid=str(about.get("uid", "")),
        namespace=event["metadata"]["namespace"],
        pod=str(about.get("name", "")),
        container=container,
        reason=reason,
        message=str(event.get("message") or ""),
        at=parse_timestamp(event.get("lastTimestamp") or event["eventTime"]).timestamp(),
    )


def concerns(kill: KubeletKill, pod: Object) -> bool:
    """Whether it is about this very pod: an event's uid is free text, its namespace is not. A static pod's is the one
    that its mirror pod names.

    A rejected pod that never ran has nothing to lose.
    """
    metadata = pod["metadata"]
    if kill.rejects and phase(pod) != "Running":
        return False
    uid = mirrored_uid(pod) or metadata["uid"]
    return (uid, metadata["namespace"], metadata["name"]) == (kill.pod_uid, kill.namespace, kill.pod)


def grace_seconds(kill: KubeletKill, pod: Object) -> float:
    """How long the kubelet waits before it kills, the preStop hook included (`setTerminationGracePeriod`)."""
    if kill.shortens:
        return EVICTION_SECONDS
    if kill.message == RESTARTED_WITH_ALL:
        return 0.0
    container = next((item for item in containers(pod) if item.get("name") == kill.container), {})
    for probe in ("liveness", "startup"):
        if f"failed {probe} probe" in kill.message:
            own = (container.get(f"{probe}Probe") or {}).get("terminationGracePeriodSeconds")
            if own is not None:
                return float(own)
    return grace_period_seconds(pod)


def why(kill: KubeletKill) -> str:
    """Completes "its pod …"."""
    message = f" ({kill.message.rstrip('. ')})" if kill.message else ""
    if kill.rejects:
        return f"is rejected by its kubelet after a restart{message}"
    if not kill.container:
        return f"{POD_REASONS[kill.reason]}{message}"
    if kill.message == RESTARTED_WITH_ALL:
        return f"loses container {kill.container}, which the kubelet restarts together with all others of the pod"
    return f"loses container {kill.container}, which the kubelet ends{message}"


def watched_namespaces(pods: Iterable[Object]) -> set[str]:
    """The namespaces in which the kubelet may report the end of one of `pods`. A pod that only names this node has
    no clients here."""
    return {pod["metadata"]["namespace"] for pod in pods if may_have_clients(pod) and is_taken_up(pod)}


class KubeletKillWatcher:
    """Follows the kubelet's events in the namespaces of this node's pods with clients."""

    def __init__(
        self, kube: Kube, node: str, pods: Callable[[], Mapping[str, Object]], report: Callable[[KubeletKill], None]
    ) -> None:
        """`pods`: this node's by uid. `report` is called in the event loop and must not block."""
        self._kube = kube
        self._node = node
        self._pods = pods
        self._report = report
        self._pods_changed = asyncio.Event()
        self._followed: dict[str, asyncio.Task[None]] = {}

    def pods_changed(self) -> None:
        """Call after every change of this node's pods."""
        self._pods_changed.set()

    async def run(self) -> None:
        """Runs until cancelled."""
        try:
            while True:
                self._pods_changed.clear()
                self._follow(watched_namespaces(self._pods().values()))
                await self._pods_changed.wait()
        finally:
            for task in self._followed.values():
                task.cancel()

    def _follow(self, namespaces: set[str]) -> None:
        for namespace in self._followed.keys() - namespaces:
            self._followed.pop(namespace).cancel()
        for namespace in namespaces - self._followed.keys():
            follower = Follower(self._kube, CORE_EVENTS, self._read, namespace, fieldSelector=SELECTOR)
            self._followed[namespace] = asyncio.create_task(follower.run(), name=f"events of {namespace}")

    def _read(self, event: Object) -> None:
        # Anybody may write an event: one that is malformed must not end the agent.
        with suppress(KeyError, TypeError, ValueError):
            kill = kubelet_kill(event, self._node)
            if kill is not None:
                containers = f"container {kill.container}" if kill.container else "all containers"
                LOG.info("the kubelet ends %s of pod %s/%s: %s", containers, kill.namespace, kill.pod, kill.message)
                self._report(kill)


def _is_rejection(reason: str) -> bool:
    return reason in REJECTIONS or reason.startswith(LACK)


def _container(field_path: str) -> str:
    for prefix in _CONTAINER_PATHS:
        if field_path.startswith(prefix) and field_path.endswith("}"):
            return field_path[len(prefix) : -1]
    return ""


LOG = logging.getLogger(__name__)


def new_stops(state: BrokerState, before: Iterable[StoppingContainer], now: float) -> list[StoppingContainer]:
    """Those that were not there `before` and are news. `now`: CLOCK_BOOTTIME seconds."""
    known = set(before)
    return [item for item in state.stopping if item not in known and is_fresh(item.at, now)]


class StopWatcher:
    """Follows the brokers of the shared GPUs."""

    def __init__(
        self,
        changed: Callable[[], Iterable[BrokerState]],
        pods: Callable[[], Mapping[str, Pod]],
        places: Callable[[], Mapping[ContainerName, ShareGpu]],
        report: Callable[[Object, StoppingContainer], bool],
        clock: Callable[[], float],
    ) -> None:
        """`changed`: what brokers have written since the last call. `pods`: this node's, by the uid in the names of
        their cgroups. `places`: where the containers' parts are. `report`: takes the pod and the container;
        whether that was news. `clock`: CLOCK_BOOTTIME seconds.
        """
        self._changed = changed
        self._pods = pods
        self._places = places
        self._report = report
        self._clock = clock
        self._seen: dict[Uuid, tuple[StoppingContainer, ...]] = {}

    async def follow(self) -> None:
        """One look at what is new."""
        for state in self._changed():
            new = new_stops(state, self._seen.get(state.uuid, ()), self._clock())
            self._seen[state.uuid] = tuple(state.stopping)
            for stop in new:
                self._take(state.uuid, stop)

    def _take(self, uuid: Uuid, stop: StoppingContainer) -> None:
        pod = self._pods().get(stop.pod_uid)
        if pod is None:
            return
        place = self._places().get((pod["metadata"]["namespace"], pod["metadata"]["name"], stop.container))
        if place is not None and place[1] == uuid and self._report(dict(pod), stop):
            text = "container %s of pod %s is being stopped, as its preStop hook says"
            LOG.info(text, stop.container, full_name(pod))
