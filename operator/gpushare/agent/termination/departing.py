"""Which pods of this node are about to lose their processes, and when. Pure: times are handed in.

What is seen: deletion (kubectl, drain, eviction through the API, preemption by the scheduler, taints, controllers), a
pod that is gone from the API though it ran (force deletion), and what the kubelet says of terminations that it decides
by itself, see `killing`. What cannot be seen before it happens: OOM kills, crashes, a kill from inside.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from gpushare.agent.process.processes import Owner
from gpushare.agent.termination import kubelet_kills as killing
from gpushare.agent.termination.kubelet_kills import KubeletKill
from gpushare.api import names
from gpushare.kube.client import Object
from gpushare.kube.pods import ENDED_PHASES

SPARE_SECONDS = 2.0
"""A client is ended so long before the kubelet would kill it."""
VANISHED_SECONDS = 10.0
"""The kubelet needs a few seconds to end a pod that was deleted by force, or a container once its time is over."""
STATUSES = ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")


@dataclass(frozen=True, slots=True)
class Departing:
    """`kill_at`: when the kubelet may kill what is left, on the clock of `now`. `why` completes "its pod …".

    `container`: the only one that departs; empty: all of the pod. `container_id`: of the instance that does, since its
    successor has the same name; empty where the pod's status did not tell.
    """

    pod: Object
    kill_at: float
    grace: float
    why: str
    container: str = ""
    container_id: str = ""

    def takes(self, owner: Owner) -> bool:
        """Whether a process of `owner`, one of this pod's, departs with it."""
        if not self.container:
            return True
        if self.container_id:
            return owner.container_id == self.container_id
        return container_name(self.pod, owner.container_id) in ("", self.container)


def decide(now: float, kill_at: float, ends_itself: bool) -> Literal["terminate", "wait"]:
    """What to do with a client process of a departing pod.

    One that would die of SIGTERM does so in mid-kernel, at any moment; one that catches it may end itself.
    """
    return "wait" if ends_itself and now < kill_at - SPARE_SECONDS else "terminate"


def departure_of(departing: Iterable[Departing], owner: Owner) -> Departing | None:
    """The one that ends a process of `owner` first; `departing`: all of its pod."""
    return min((one for one in departing if one.takes(owner)), key=lambda one: one.kill_at, default=None)


def ending(pod: Object) -> tuple[float, str] | None:
    """(seconds of grace, why) of a pod whose end has begun; None: it has not, or no container runs any more."""
    metadata = pod["metadata"]
    if pod.get("status", {}).get("phase") in ENDED_PHASES:
        return None
    if metadata.get("deletionTimestamp"):
        grace = float(metadata.get("deletionGracePeriodSeconds") or 0)
        return grace, f"is being deleted with a grace period of {grace:g} s"
    return None


def asks_for_gpu(pod: Object) -> bool:
    """Whether the pod holds a slot, or a claim, which may be one of ours."""
    spec = pod["spec"]
    containers = [*spec.get("containers", ()), *(spec.get("initContainers") or ())]
    limits = [container.get("resources", {}).get("limits") or {} for container in containers]
    return bool(spec.get("resourceClaims")) or any(names.share_of_resource(key) for one in limits for key in one)


def runs_here(pod: Object) -> bool:
    """Whether it may have clients: it asks for a GPU and has not ended."""
    return asks_for_gpu(pod) and pod.get("status", {}).get("phase") not in ENDED_PHASES


class Departures:
    """Remembers since when each pod is departing, so that the clock of the API server does not matter.

    Only for a pod that was never seen before its end began, as after a restart of ours, is that clock asked.
    """

    def __init__(self) -> None:
        self._staying: Mapping[str, Object] = {}
        self._departing: dict[str, Departing] = {}
        self._vanished: dict[str, tuple[float, Departing]] = {}
        self._killed: dict[tuple[str, str, str], Departing] = {}

    def kill(self, killed: KubeletKill, pods: Mapping[str, Object], now: float, wall: float) -> bool:
        """Takes note of a termination that the kubelet decided.

        False: of no pod of `pods` that has clients, of one whose end is known already, or of a container that has been
        started again since.
        """
        pod = pods.get(killed.pod_uid)
        if pod is None or not killing.concerns(killed, pod) or not runs_here(pod):
            return False
        if pod["metadata"].get("deletionTimestamp") and not killed.shortens:
            return False
        if killed.container and (killed.pod_uid, "", "") in self._killed:
            # The containers of a pod that ends as a whole are told one by one, without the reason.
            return False
        instance, started = _instance(pod, killed.container)
        grace = killing.grace_seconds(killed, pod)
        kill_at = now + grace - max(0.0, wall - killed.at)
        if started > killed.at or kill_at + VANISHED_SECONDS < now:
            return False
        item = Departing(pod, kill_at, grace, killing.why(killed), killed.container, instance)
        self._killed.setdefault((killed.pod_uid, killed.container, instance), item)
        return True

    def look(self, pods: Mapping[str, Object], now: float, wall: float) -> dict[str, tuple[Departing, ...]]:
        """By uid, of those that ask for a GPU. `now`: monotonic seconds; `wall`: seconds since 1970."""
        asking = {uid: pod for uid, pod in pods.items() if asks_for_gpu(pod)}
        departing = {}
        for uid, pod in asking.items():
            if (end := ending(pod)) is not None:
                departing[uid] = self._departure(uid, pod, *end, now, wall)
        self._notice_vanished(pods, now)
        self._forget_killed(asking, departing, now)
        self._departing = departing
        self._staying = {uid: pod for uid, pod in asking.items() if uid not in departing and runs_here(pod)}
        found = [*((uid, item) for uid, (_, item) in self._vanished.items()), *departing.items()]
        return _grouped([*found, *((uid, item) for (uid, _, _), item in self._killed.items())])

    def _departure(self, uid: str, pod: Object, grace: float, why: str, now: float, wall: float) -> Departing:
        known = self._departing.get(uid)
        if known is not None and known.grace == grace:
            return Departing(pod, known.kill_at, grace, why)
        if known is not None:
            # Asked to end sooner: the old end still holds where it is the earlier one.
            return Departing(pod, min(known.kill_at, now + grace), grace, why)
        left = grace if uid in self._staying else _left(pod, grace, wall)
        return Departing(pod, now + left, grace, why)

    def _notice_vanished(self, pods: Mapping[str, Object], now: float) -> None:
        before = {**self._staying, **{uid: item.pod for uid, item in self._departing.items()}}
        for uid in before.keys() - pods.keys():
            item = Departing(before[uid], now, 0.0, "is gone from the API while it ran, as after a forced deletion")
            self._vanished[uid] = (now + VANISHED_SECONDS, item)
        self._vanished = {uid: entry for uid, entry in self._vanished.items() if entry[0] > now and uid not in pods}

    def _forget_killed(self, asking: Mapping[str, Object], deleted: Mapping[str, Departing], now: float) -> None:
        """A deleted pod's containers have the time of its deletion, whatever its spec says; an evicted one's do not.

        Of a pod without grace, the phase may be told before its containers have ended.
        """
        self._killed = {
            key: item
            for key, item in self._killed.items()
            if key[0] in asking
            and (runs_here(asking[key[0]]) or item.grace <= killing.EVICTION_SECONDS)
            and now < item.kill_at + VANISHED_SECONDS
            and not (item.container and key[0] in deleted)
        }


def container_name(pod: Object, container_id: str) -> str:
    """Of the container that the runtime knows by `container_id`; empty where the pod's status does not tell."""
    for item in _statuses(pod):
        if container_id and (item.get("containerID") or "").endswith(f"://{container_id}"):
            return str(item["name"])
    return ""


def _instance(pod: Object, container: str) -> tuple[str, float]:
    """(the runtime's id of the container's latest instance, when it started in seconds since 1970).

    Empty and 0 where the pod's status does not tell, or where the whole pod is meant.
    """
    for item in _statuses(pod):
        if container and item.get("name") == container:
            running = (item.get("state") or {}).get("running") or {}
            started = running.get("startedAt")
            at = datetime.fromisoformat(started).timestamp() if started else 0.0
            return str(item.get("containerID") or "").rpartition("://")[2], at
    return "", 0.0


def _statuses(pod: Object) -> list[Object]:
    status = pod.get("status", {})
    return [item for kind in STATUSES for item in status.get(kind) or ()]


def _grouped(found: Iterable[tuple[str, Departing]]) -> dict[str, tuple[Departing, ...]]:
    grouped: dict[str, tuple[Departing, ...]] = {}
    for uid, item in found:
        grouped[uid] = (*grouped.get(uid, ()), item)
    return grouped


def _left(pod: Object, grace: float, wall: float) -> float:
    """Of the grace period, by the API server's clock: its timestamp is that of the end."""
    end = datetime.fromisoformat(pod["metadata"]["deletionTimestamp"]).timestamp()
    return min(grace, max(0.0, end - wall))
