"""Departure without harm: the CUDA clients of departing pods leave through their MPS daemon before a signal hits them.

A process that is killed while its kernel runs kills every neighbour on its GPU (measured on H200); one whose contexts
`terminate_client` has ended does not. Guarantees: within 0.3 s of a pod's departure being known, each of its clients
that would die of SIGTERM is being ended, later ones as they appear, and the others 2 s before the kubelet kills. Does
not guarantee that this comes before the kubelet's first signal: the webhook's preStop sleep does. Nothing is polled
while no pod departs.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from gpushare.api.conditions import EventReason
from gpushare.api.gpunode import Uuid
from gpushare.kube import events
from gpushare.kube.announcer import News
from gpushare.kube.client import Object
from gpushare.node.client_guard import ClientGuard, Due
from gpushare.node.departing import SPARE_SECONDS, Departing, Departures, container_name
from gpushare.node.ending import Endings
from gpushare.node.killing import Killing
from gpushare.nvml.types import Nvml

RESCAN_SECONDS = 0.25
SLOW_RESCAN_SECONDS = 2.0
"""While all that is left are long grace periods: a pod may depart for hours."""
HASTE_SECONDS = 5.0


class Departure:
    def __init__(
        self,
        nvml: Nvml,
        pods: Callable[[], Mapping[str, Object]],
        gpus: Callable[[], Collection[Uuid]],
        endings: Endings,
        tell: Callable[[News], None],
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        proc: Path = Path("/proc"),
    ) -> None:
        """`pods`: this node's by uid. `gpus`: those with a daemon of ours. `tell`: takes what becomes an event, and
        never waits. `clock`: seconds, monotonic. `wall`: seconds since 1970.
        """
        self._pods = pods
        self._gpus = gpus
        self._tell = tell
        self._clock = clock
        self._wall = wall
        self._new_guard = partial(ClientGuard, nvml=nvml, endings=endings, proc=proc)
        self._poked = asyncio.Event()
        self._departures = Departures()
        self._departing: Mapping[str, Sequence[Departing]] = {}
        self._guards: dict[Uuid, ClientGuard] = {}
        self._scans: dict[Uuid, asyncio.Task[None]] = {}

    def poke(self) -> None:
        """To be called when a pod of this node has changed."""
        self._poked.set()

    def killing(self, killing: Killing) -> None:
        """To be called when the kubelet says that it ends a container, or a pod, by itself."""
        if self._departures.kill(killing, self._pods(), self._clock(), self._wall()):
            self.poke()

    async def run(self) -> None:
        """Runs until cancelled."""
        try:
            while True:
                self._poked.clear()
                self._look()
                # Not asyncio.wait_for: Python 3.11's can swallow a cancellation that comes with the poke.
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause(self._departing, self._clock())):
                        await self._poked.wait()
        finally:
            for task in self._scans.values():
                task.cancel()

    def _look(self) -> None:
        self._departing = self._departures.look(self._pods(), self._clock(), self._wall())
        if not self._departing:
            return
        for uuid in self._gpus():
            # A GPU whose driver or daemon hangs is left to its own scan and does not hold up the others.
            if uuid not in self._scans:
                self._scans[uuid] = asyncio.create_task(self._scan(uuid), name=f"departures from {uuid}")

    async def _scan(self, uuid: Uuid) -> None:
        try:
            guard = self._guards.setdefault(uuid, self._new_guard(uuid))
            for due in await guard.end_due(self._departing, self._clock):
                self._tell(news(uuid, due))
        finally:
            del self._scans[uuid]


def pause(departing: Mapping[str, Sequence[Departing]], now: float) -> float | None:
    """Seconds until the next look, without news; None: nothing departs."""
    items = [item for some in departing.values() for item in some]
    if not items:
        return None
    fresh = any(now - (item.kill_at - item.grace) < HASTE_SECONDS for item in items)
    near = any(abs(item.kill_at - SPARE_SECONDS - now) < HASTE_SECONDS for item in items)
    return RESCAN_SECONDS if fresh or near else SLOW_RESCAN_SECONDS


def news(uuid: Uuid, due: Due) -> News:
    """One for each process, which the subject names: a container may have several."""
    return News(
        events.reference(due.departing.pod, "v1", "Pod"),
        kind="Normal",
        reason=EventReason.CLIENT_TERMINATED,
        action="TerminateClient",
        note=note(uuid, due),
        subject=f"{due.process.pid}/{due.process.started}",
    )


def note(uuid: Uuid, due: Due) -> str:
    """The event's text: what was done, to whom, why, and for whose sake."""
    process, pod = due.process, due.departing.pod
    name = container_name(pod, process.owner.container_id if process.owner else "")
    container = f"container {name}" if name else "an unknown container"
    why = "catches SIGTERM but its time is over" if process.catches_sigterm else "does not catch SIGTERM"
    if due.with_ancestor is not None:
        why = f"would be killed as soon as process {due.with_ancestor}, which it depends on, dies of SIGTERM"
    metadata = pod["metadata"]
    whose = f"{container} of pod {metadata['namespace']}/{metadata['name']}"
    return (
        f"Ended the CUDA contexts of process {process.pid} ({whose}) on GPU {uuid} through its MPS daemon: the pod "
        f"{due.departing.why}, the process {why}, and being killed in the middle of a kernel it would take all other "
        "clients of this GPU with it."
    )
