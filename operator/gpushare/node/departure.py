"""Departure without harm: the CUDA clients of departing pods leave through their MPS daemon before a signal hits them.

A process that is killed while its kernel runs kills every neighbour on its GPU (measured on H200); one whose contexts
`terminate_client` has ended does not. Guarantees: within 0.3 s of a pod's deletion being known, each of its clients
that would die of SIGTERM is being ended, later ones as soon as they appear, and the others 2 s before the kubelet
kills. Does not guarantee that this comes before the kubelet's first signal: the webhook's preStop sleep does. Nothing
is polled while no pod departs.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from gpushare.api.gpunode import Uuid
from gpushare.kube import events
from gpushare.kube.client import Object
from gpushare.node.client_guard import ClientGuard, Control, Due
from gpushare.node.departing import Departing, Departures
from gpushare.nvml.types import Nvml

RESCAN_SECONDS = 0.25


class Departure:
    def __init__(
        self,
        nvml: Nvml,
        pods: Callable[[], Mapping[str, Object]],
        gpus: Callable[[], Collection[Uuid]],
        control: Callable[[Uuid], Control],
        post: Callable[[Object], Coroutine[Any, Any, None]],
        instance: str = "",
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        proc: Path = Path("/proc"),
    ) -> None:
        """`pods`: this node's by uid. `gpus`: those with a daemon of ours. `post`: writes an event's body and never
        raises. `instance`: who reports the events. `clock`: seconds, monotonic. `wall`: seconds since 1970.
        """
        self._pods = pods
        self._gpus = gpus
        self._post = post
        self._instance = instance
        self._clock = clock
        self._wall = wall
        self._new_guard = partial(ClientGuard, nvml=nvml, control=control, proc=proc)
        self._poked = asyncio.Event()
        self._departures = Departures()
        self._departing: Mapping[str, Departing] = {}
        self._guards: dict[Uuid, ClientGuard] = {}
        self._scans: dict[Uuid, asyncio.Task[None]] = {}
        self._posts: set[asyncio.Task[None]] = set()

    def poke(self) -> None:
        """To be called when a pod of this node has changed."""
        self._poked.set()

    async def run(self) -> None:
        """Runs until cancelled."""
        try:
            while True:
                self._poked.clear()
                self._look()
                # Not asyncio.wait_for: Python 3.11's can swallow a cancellation that comes with the poke.
                with suppress(TimeoutError):
                    async with asyncio.timeout(RESCAN_SECONDS if self._departing else None):
                        await self._poked.wait()
        finally:
            for task in (*self._scans.values(), *self._posts):
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
                self._tell(uuid, due)
        finally:
            del self._scans[uuid]

    def _tell(self, uuid: Uuid, due: Due) -> None:
        pod = due.departing.pod
        body = events.event(
            events.reference(pod, "v1", "Pod"),
            controller="gpushare-agent",
            instance=self._instance,
            kind="Normal",
            reason="ClientTerminated",
            action="TerminateClient",
            note=note(uuid, due),
        )
        task = asyncio.create_task(self._post(body))
        self._posts.add(task)
        task.add_done_callback(self._posts.discard)


def note(uuid: Uuid, due: Due) -> str:
    """The event's text: what was done, to whom, why, and for whose sake."""
    process, pod = due.process, due.departing.pod
    name = container_name(pod, process.owner.container_id if process.owner else "")
    container = f"container {name}" if name else "an unknown container"
    why = "catches SIGTERM but its time is over" if process.catches_sigterm else "does not catch SIGTERM"
    metadata = pod["metadata"]
    whose = f"{container} of pod {metadata['namespace']}/{metadata['name']}"
    return (
        f"Ended the CUDA contexts of process {process.pid} ({whose}) on GPU {uuid} through its MPS daemon: the pod "
        f"{due.departing.why}, the process {why}, and being killed in the middle of a kernel it would take all other "
        "clients of this GPU with it."
    )


def container_name(pod: Object, container_id: str) -> str:
    """Of the container that the runtime knows by `container_id`; empty where the pod's status does not tell."""
    status = pod.get("status", {})
    for kind in ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"):
        for item in status.get(kind) or ():
            if container_id and (item.get("containerID") or "").endswith(f"://{container_id}"):
                return str(item["name"])
    return ""
