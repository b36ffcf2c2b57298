"""Which pods of this node are about to lose their processes, and when. Pure: times are handed in.

What can be seen: deletion (kubectl, drain, preemption by the scheduler, taints, eviction through the API), and a pod
that is gone from the API though it ran (force deletion). What cannot: a termination that the kubelet decides by itself
(pressure, its own preemption, node shutdown, activeDeadlineSeconds, a failed liveness probe), since it tells the API
only once no container runs any more (status_manager.go:1473,1504 of Kubernetes 1.37); OOM kills; crashes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from gpushare.api import names
from gpushare.kube.client import Object

SPARE_SECONDS = 2.0
"""A client is ended so long before the kubelet would kill it."""
VANISHED_SECONDS = 10.0
"""The kubelet needs a few seconds to end a pod that was deleted by force."""
ENDED_PHASES = ("Succeeded", "Failed")
"""The kubelet tells these only once no container runs any more."""


@dataclass(frozen=True, slots=True)
class Departing:
    """`kill_at`: when the kubelet may kill what is left, on the clock of `now`. `why` completes "its pod …"."""

    pod: Object
    kill_at: float
    grace: float
    why: str


def decide(now: float, kill_at: float, catches_sigterm: bool) -> Literal["terminate", "wait"]:
    """What to do with a client process of a departing pod.

    One without a handler for SIGTERM would die of it in mid-kernel, at any moment; one with a handler may end itself.
    """
    return "wait" if catches_sigterm and now < kill_at - SPARE_SECONDS else "terminate"


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


class Departures:
    """Remembers since when each pod is departing, so that the clock of the API server does not matter.

    Only for a pod that was never seen before its end began, as after a restart of ours, is that clock asked.
    """

    def __init__(self) -> None:
        self._staying: Mapping[str, Object] = {}
        self._departing: dict[str, Departing] = {}
        self._vanished: dict[str, tuple[float, Departing]] = {}

    def look(self, pods: Mapping[str, Object], now: float, wall: float) -> dict[str, Departing]:
        """By uid, of those that ask for a GPU. `now`: monotonic seconds; `wall`: seconds since 1970."""
        asking = {uid: pod for uid, pod in pods.items() if asks_for_gpu(pod)}
        departing = {}
        for uid, pod in asking.items():
            if (found := ending(pod)) is not None:
                departing[uid] = self._departure(uid, pod, *found, now, wall)
        self._notice_vanished(pods, now)
        self._departing = departing
        self._staying = {
            uid: pod
            for uid, pod in asking.items()
            if uid not in departing and pod.get("status", {}).get("phase") not in ENDED_PHASES
        }
        return {**{uid: item for uid, (_, item) in self._vanished.items()}, **departing}

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


def _left(pod: Object, grace: float, wall: float) -> float:
    """Of the grace period, by the API server's clock: its timestamp is that of the end."""
    end = datetime.fromisoformat(pod["metadata"]["deletionTimestamp"]).timestamp()
    return min(grace, max(0.0, end - wall))
