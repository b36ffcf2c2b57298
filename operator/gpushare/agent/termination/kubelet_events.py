"""The kubelet's events about this node's clients, followed in their namespaces.

Guarantees: a namespace is followed as long as a pod with clients of this node is in it, and no other: the API server
keeps no cache of events, so a watch of all of a cluster's from every node would be read from etcd as often as there are
nodes. Does not guarantee that an event comes, or in time: the kubelet writes them as best it can.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress

from gpushare.agent.termination.departing import runs_here
from gpushare.agent.termination.kubelet_kills import SELECTOR, KubeletKill, kubelet_kill
from gpushare.kube.client import CORE_EVENTS, Kube, Object
from gpushare.kube.reflector import Follower

LOG = logging.getLogger(__name__)


class KubeletKillWatcher:
    def __init__(
        self, kube: Kube, node: str, pods: Callable[[], Mapping[str, Object]], killing: Callable[[KubeletKill], None]
    ) -> None:
        """`pods`: this node's by uid. `killing` is called in the event loop and must not block."""
        self._kube = kube
        self._node = node
        self._pods = pods
        self._killing = killing
        self._poked = asyncio.Event()
        self._followed: dict[str, asyncio.Task[None]] = {}

    def poke(self) -> None:
        """To be called when a pod of this node has changed."""
        self._poked.set()

    async def run(self) -> None:
        """Runs until cancelled."""
        try:
            while True:
                self._poked.clear()
                self._follow({pod["metadata"]["namespace"] for pod in self._pods().values() if runs_here(pod)})
                await self._poked.wait()
        finally:
            for task in self._followed.values():
                task.cancel()

    def _follow(self, wanted: set[str]) -> None:
        for namespace in self._followed.keys() - wanted:
            self._followed.pop(namespace).cancel()
        for namespace in wanted - self._followed.keys():
            follower = Follower(self._kube, CORE_EVENTS, self._seen, namespace, fieldSelector=SELECTOR)
            self._followed[namespace] = asyncio.create_task(follower.run(), name=f"events of {namespace}")

    def _seen(self, event: Object) -> None:
        # What anybody may write is no reason to end the agent.
        with suppress(KeyError, TypeError, ValueError):
            killing = kubelet_kill(event, self._node)
            if killing is not None:
                LOG.info("the kubelet ends %s of %s/%s: %s", *_told(killing))
                self._killing(killing)


def _told(killing: KubeletKill) -> tuple[str, str, str, str]:
    whose = f"container {killing.container}" if killing.container else "all"
    return whose, killing.namespace, killing.pod, killing.message
