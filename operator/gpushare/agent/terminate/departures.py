"""Which pods of this node are about to lose their processes, and when. Pure: times are handed in.

Seen are: deletion (kubectl, drain, eviction through the API, preemption by the scheduler, taints, controllers); a pod
that vanished from the API while it ran (forced deletion); what the kubelet's events report of terminations that it
decides by itself, see `kubelet_kills`; and containers whose preStop hook told their attach broker, see `stopping`.
Nobody can see OOM kills, crashes, or a kill from inside before they happen.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpushare.agent.terminate import kubelet_kills
from gpushare.agent.terminate.kubelet_kills import KubeletKill
from gpushare.api.timestamps import parse_timestamp
from gpushare.kube.client import Object
from gpushare.kube.pods import (
    asks_for_gpu,
    container_id,
    container_name,
    container_statuses,
    containers,
    grace_period_seconds,
    has_ended,
    may_have_clients,
    mirrored_uid,
)
from gpushare.mps.wire import StoppingContainer
from gpushare.process.procfs import Owner

SPARE_SECONDS = 2.0
"""A client is terminated this long before the kubelet would kill it."""
LONGEST_RESTART_SECONDS = 600.0
"""More than lies between a container's end and its next start: the kubelet's longest back-off is five minutes."""
EVENT_SECONDS = 1.0
"""The time in an event is cut to whole seconds."""
VANISHED_SECONDS = 10.0
"""The kubelet needs a few seconds to end a pod that was deleted by force, or a container once its time is over."""


@dataclass(frozen=True, slots=True)
class Departure:
    """The end of a pod, or of one container of it.

    `kill_at`: when the kubelet may kill what is left, in CLOCK_BOOTTIME seconds. `grace`: seconds before that. `why`
    completes "its pod …". `container`: the only one that departs; empty: the whole pod. `container_id`: of the instance
    that departs, since its successor has the same name; empty where the pod's status did not show it. `killed_at`: when
    the kubelet reported its end. `by_hook`: its preStop hook alone tells of it, which does not know why.
    """

    pod: Object
    kill_at: float
    grace: float
    why: str
    container: str = ""
    container_id: str = ""
    killed_at: float = 0.0
    by_hook: bool = False

    def includes(self, owner: Owner, started: float) -> bool:
        """Whether it ends a process of `owner`, which is one of this pod's. `started`: in CLOCK_BOOTTIME seconds."""
        if not self.container:
            return True
        if self.container_id:
            return owner.container_id == self.container_id
        if started > self.killed_at + EVENT_SECONDS:
            return False  # the successor's
        return container_name(self.pod, owner.container_id, owner.container) in ("", self.container)


def is_due(now: float, kill_at: float, ends_itself: bool) -> bool:
    """Whether a client of a departing pod is terminated now.

    A process that would die of SIGTERM does so in mid-kernel, at any moment; one that catches it may end by itself.
    """
    return not ends_itself or now >= kill_at - SPARE_SECONDS


def first_departure(departures: Iterable[Departure], owner: Owner, started: float) -> Departure | None:
    """The departure that ends a process of `owner` first. `departures`: all of its pod. `started`: when the process
    did, in CLOCK_BOOTTIME seconds.
    """
    ending = (departure for departure in departures if departure.includes(owner, started))
    return min(ending, key=lambda departure: departure.kill_at, default=None)


def deletion(pod: Object) -> tuple[float, str] | None:
    """Returns (seconds of grace, why). None: the pod is not being deleted, or none of its containers runs."""
    metadata = pod["metadata"]
    if has_ended(pod) or not metadata.get("deletionTimestamp"):
        return None
    grace = float(metadata.get("deletionGracePeriodSeconds") or 0)
    return grace, f"is being deleted with a grace period of {grace:g} s"


class DepartureTracker:
    """Remembers since when each pod departs, so that the API server's clock does not matter.

    That clock counts only for a pod that was already departing when it was first seen, as after a restart of the agent.
    """

    def __init__(self) -> None:
        self._staying: Mapping[str, Object] = {}
        self._deleted: dict[str, Departure] = {}
        self._vanished: dict[str, tuple[float, Departure]] = {}
        self._killed: dict[tuple[str, str, str], Departure] = {}
        """Departures by (pod uid, container, container id)."""

    def add_kill(self, kill: KubeletKill, pods: Mapping[str, Object], now: float, wall: float) -> bool:
        """Adds a termination that the kubelet decided.

        False: it is of no pod of `pods` that has clients, of one whose end is known already, or of a container that has
        been started again since.
        """
        pod = pods.get(kill.pod_uid)
        if pod is None or not kubelet_kills.concerns(kill, pod) or not may_have_clients(pod):
            return False
        if _is_deleted(pod) and not kill.shortens:
            return False
        if kill.container and (kill.pod_uid, "", "") in self._killed:
            # When a pod ends as a whole, events of its single containers follow, without the reason.
            return False
        instance, started = _latest_instance(pod, kill.container)
        grace = kubelet_kills.grace_seconds(kill, pod)
        killed_at = now - max(0.0, wall - kill.at)
        kill_at = killed_at + grace
        if _is_earlier_instances(kill.at, started, wall) or kill_at + VANISHED_SECONDS < now:
            return False
        departure = Departure(pod, kill_at, grace, kubelet_kills.why(kill), kill.container, instance, killed_at)
        known = self._killed.get((kill.pod_uid, kill.container, instance))
        # An end that is over was another instance's, where the status shows neither, as of one that lives for seconds.
        if known is None or known.by_hook or known.kill_at < killed_at:
            self._killed[kill.pod_uid, kill.container, instance] = departure
        return True

    def add_stop(self, pod: Object, stop: StoppingContainer, now: float) -> bool:
        """Adds a container whose preStop hook said that it is being stopped.

        The grace is the shortest that the kubelet may give it, since the hook does not know why it is run. False: it is
        known already that it ends, or the pod has no clients. The pod's status need not show the container's id yet.
        """
        uid = mirrored_uid(pod) or pod["metadata"]["uid"]
        key = (uid, stop.container, stop.container_id)
        if not may_have_clients(pod) or _is_deleted(pod):
            return False
        grace = shortest_grace_seconds(pod, stop.container)
        if key in self._killed or (uid, "", "") in self._killed or stop.at + grace + VANISHED_SECONDS < now:
            return False
        why = f"loses container {stop.container}, whose preStop hook says that it is being stopped"
        departure = Departure(
            pod, stop.at + grace, grace, why, stop.container, stop.container_id, stop.at, by_hook=True
        )
        self._killed[key] = departure
        return True

    def update(self, pods: Mapping[str, Object], now: float, wall: float) -> dict[str, tuple[Departure, ...]]:
        """The departures of now by pod uid, of pods that ask for a GPU. `pods`: this node's, by the uid in the names of
        their cgroups.

        A mirror pod's deletion ends nothing: the kubelet makes the mirror again, and its static pod goes on.
        `now`: CLOCK_BOOTTIME seconds. `wall`: seconds since 1970.
        """
        asking = {uid: pod for uid, pod in pods.items() if asks_for_gpu(pod)}
        of_the_api = {uid: pod for uid, pod in asking.items() if not mirrored_uid(pod)}
        deleted = {
            uid: self._deletion(uid, pod, *seen, now, wall)
            for uid, pod in of_the_api.items()
            if (seen := deletion(pod)) is not None
        }
        self._notice_vanished(pods, now)
        self._forget_killed(asking, deleted, now)
        self._deleted = deleted
        self._staying = {uid: pod for uid, pod in of_the_api.items() if uid not in deleted and may_have_clients(pod)}
        vanished = ((uid, departure) for uid, (_, departure) in self._vanished.items())
        killed = ((uid, departure) for (uid, _, _), departure in self._killed.items())
        return _by_uid([*vanished, *deleted.items(), *killed])

    def _deletion(self, uid: str, pod: Object, grace: float, why: str, now: float, wall: float) -> Departure:
        known = self._deleted.get(uid)
        if known is not None and known.grace == grace:
            return Departure(pod, known.kill_at, grace, why)
        if known is not None:
            # Deleted again with less grace: the old end still holds if it is the earlier one.
            return Departure(pod, min(known.kill_at, now + grace), grace, why)
        left = grace if uid in self._staying else _remaining_grace(pod, grace, wall)
        return Departure(pod, now + left, grace, why)

    def _notice_vanished(self, pods: Mapping[str, Object], now: float) -> None:
        before = {**self._staying, **{uid: departure.pod for uid, departure in self._deleted.items()}}
        for uid in before.keys() - pods.keys():
            why = "is gone from the API while it ran, as after a forced deletion"
            self._vanished[uid] = (now + VANISHED_SECONDS, Departure(before[uid], now, 0.0, why))
        self._vanished = {uid: entry for uid, entry in self._vanished.items() if entry[0] > now and uid not in pods}

    def _forget_killed(self, asking: Mapping[str, Object], deleted: Mapping[str, Departure], now: float) -> None:
        """A deleted pod's containers have the time of its deletion, whatever its spec says; an evicted one's do not.

        A pod without grace may be reported as ended before its containers have ended.
        """
        self._killed = {
            key: departure
            for key, departure in self._killed.items()
            if key[0] in asking
            and (may_have_clients(asking[key[0]]) or departure.grace <= kubelet_kills.EVICTION_SECONDS)
            and now < departure.kill_at + VANISHED_SECONDS
            and not (departure.container and key[0] in deleted)
        }


def _is_deleted(pod: Object) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp")) and not mirrored_uid(pod)


def shortest_grace_seconds(pod: Object, container: str) -> float:
    """The least time that the kubelet may give a container that it stops by itself: the pod's, or a probe's own."""
    spec = next((item for item in containers(pod) if item.get("name") == container), {})
    probes = [spec.get(f"{probe}Probe") or {} for probe in ("liveness", "startup")]
    own = [probe["terminationGracePeriodSeconds"] for probe in probes if "terminationGracePeriodSeconds" in probe]
    return min(map(float, (grace_period_seconds(pod), *own)))


def _latest_instance(pod: Object, container: str) -> tuple[str, float]:
    """Returns (the runtime's id of the container's latest instance, when it started in seconds since 1970).

    Empty and 0 where the pod's status does not show it, or if the whole pod is meant. The status of a container that is
    started again shows the instance before, which has ended, until the kubelet has started all that it was about to.
    """
    for status in container_statuses(pod):
        if container and status.get("name") == container:
            running = (status.get("state") or {}).get("running")
            if running is None:
                break
            started = running.get("startedAt")
            return container_id(status), parse_timestamp(started).timestamp() if started else 0.0
    return "", 0.0


def _is_earlier_instances(killed: float, started: float, wall: float) -> bool:
    """Whether a container was killed before its present instance started; all by this node's time of day.

    A start that lies far ahead was before that time was set back. A kill that does not lie ahead came after that.
    """
    return killed < started and not killed <= wall < started - LONGEST_RESTART_SECONDS


def _by_uid(departures: Iterable[tuple[str, Departure]]) -> dict[str, tuple[Departure, ...]]:
    grouped: dict[str, tuple[Departure, ...]] = {}
    for uid, departure in departures:
        grouped[uid] = (*grouped.get(uid, ()), departure)
    return grouped


def _remaining_grace(pod: Object, grace: float, wall: float) -> float:
    """The grace that the deletion timestamp, which is the time of the end by the API server's clock, leaves; 0 if it
    cannot be read.
    """
    try:
        end = parse_timestamp(pod["metadata"]["deletionTimestamp"]).timestamp()
    except (ValueError, OverflowError):
        return 0.0
    return min(grace, max(0.0, end - wall))
