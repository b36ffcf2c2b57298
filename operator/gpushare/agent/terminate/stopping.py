"""Containers whose preStop hook says that they are being stopped, as their attach brokers write it to broker.json.

The hook is the program `pre-stop` (native/pre_stop.c), in the place of a plain sleep where the webhook knows that all
nodes have it. It tells of every stop, while the kubelet's events tell of the first ones of a container that is ended
again and again.

Guarantees: a broker is no word but about containers that hold a part of its own GPU. What a container's processes say
by themselves ends clients of that container alone, as its end would.
"""

import logging
from collections.abc import Callable, Iterable, Mapping

from gpushare.agent.podresources.holdings import ContainerName, ShareGpu
from gpushare.api.gpunode import Uuid
from gpushare.kube.client import Object
from gpushare.kube.pods import Pod, full_name
from gpushare.mps.wire import BrokerState, StoppingContainer, is_fresh

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
