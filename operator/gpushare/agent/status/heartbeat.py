"""Says that this agent runs: renews its node's Lease, and writes nothing else.

Guarantees: the Lease is renewed only while the agent does its work, so it has decided and reported what it knows, and
its ticks go on; an agent that hangs falls silent as one that is gone. A failed renewal is tried again soon, and never
ends the agent. Agents that start together do not renew together.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from datetime import UTC, datetime

from gpushare.kube.client import API_ERRORS, Kube, KubeError, Object
from gpushare.kube.coordination.heartbeat import RENEW_SECONDS, heartbeat_lease, heartbeat_spec
from gpushare.kube.resources import LEASES
from gpushare.messages.log_on_change import LogOnChange

LOG = logging.getLogger(__name__)
MANAGER = "gpushare-agent"
RETRY_SECONDS = 3.0
REQUEST_SECONDS = 5.0


class Heartbeat:
    def __init__(
        self,
        kube: Kube,
        namespace: str,
        node: str,
        pod: str,
        clock: Callable[[], float],
        gpu_node: Callable[[], Object | None],
        problem: Callable[[], str | None],
        spread: Callable[[], float] = random.random,
    ) -> None:
        """`namespace`: gpushare's own. `clock`: seconds, monotonic. `gpu_node`: the node's GpuNode, once there is one.

        `problem`: why the agent does not work (yet); None: it works. `spread`: from 0 to 1, the part of a period after
        which the Lease is renewed for the second time: a thousand agents that start together renew apart from then on.
        """
        self._kube = kube
        self._namespace = namespace
        self._node = node
        self._pod = pod
        self._clock = clock
        self._gpu_node = gpu_node
        self._problem = problem
        self._due = 0.0
        self._period = RENEW_SECONDS * spread()
        """The time until the next renewal; RENEW_SECONDS from the second one on."""
        self._problems = LogOnChange(LOG)

    async def renew(self) -> None:
        """Renews the Lease if that is due. Call it every second; errors are logged."""
        gpu_node, now = self._gpu_node(), self._clock()
        if now < self._due or gpu_node is None or self._problem() is not None:
            return
        self._due = now + self._period
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                await self._write(gpu_node)
            self._period = RENEW_SECONDS
            self._problems.clear()
        except API_ERRORS as error:
            self._due = self._clock() + RETRY_SECONDS
            self._problems.log(
                "the heartbeat of node %s was not renewed: %s", self._node, error or type(error).__name__
            )

    async def _write(self, gpu_node: Object) -> None:
        spec = heartbeat_spec(self._pod, datetime.now(UTC))
        try:
            await self._kube.patch(LEASES, self._node, {"spec": spec}, manager=MANAGER, namespace=self._namespace)
        except KubeError as error:
            if not error.not_found:
                raise
            await self._kube.create(LEASES, heartbeat_lease(self._node, gpu_node, spec), namespace=self._namespace)
