"""What befell a GPU while no agent ran, told once by the next one, as far as it is certain. Pure.

Certain is what differs between the last note of an agent and the first look of its successor: what the GPU's supervisor
has counted in between, and clients that have ended although no agent had asked for that, of pods that were deleted. Not
known, and not told: whether such a client was in the middle of a kernel, what a container ran into whose pod is still
there, who came and went in between, and all of a GPU that was given back.

seen.json: what an agent leaves to its successor about each GPU, and what that one reads there.

Guarantees: what an earlier agent left is read before anything is written over it. A note is at most NOTE_SECONDS older
than the agent's end, and younger where the GPU's clients or counts had just changed. Loses: what was on the node's
disk when that reboots, which ends all clients anyway.
"""

import logging
from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from gpushare.agent.process import processes
from gpushare.agent.termination.terminate import TerminationFile, TerminationRecord
from gpushare.agent.usage.usage import Reading
from gpushare.api import names
from gpushare.api.base import ApiModel
from gpushare.api.conditions import EventReason
from gpushare.api.gpunode import Uuid
from gpushare.kube.event_recorder import Event
from gpushare.mps.files import read_model, write_model
from gpushare.mps.layout import gpu_dir, gpu_dirs
from gpushare.mps.wire import DaemonState

LOG = logging.getLogger(__name__)

NOTE_SECONDS = 5.0


PODS_TOLD = 8


class SeenClient(ApiModel, frozen=True):
    """A process that MPS served. `started`, in clock ticks since boot, tells it from a later one of its PID.

    `pod_uid`: the one that its cgroup names; a static pod has another one in the API.
    """

    pid: int
    started: int
    pod_uid: str
    namespace: str
    pod: str


class LastSeen(ApiModel, frozen=True):
    """seen.json, written and read by the agent alone: one GPU as it was last seen."""

    version: Literal[1] = 1
    at: float = Field(description="Seconds since 1970.")
    restarts: int = 0
    servers_lost: int = 0
    faults: int = 0
    clients: tuple[SeenClient, ...] = ()


def clients_of(reading: Reading) -> tuple[SeenClient, ...]:
    """Those that a successor has to know: of pods, through MPS, and not ended yet."""
    return tuple(
        SeenClient(pid=item.pid, started=item.started, pod_uid=usage.pod_uid, namespace=usage.namespace, pod=usage.pod)
        for usage in reading.usages
        for item in usage.listed
        if usage.pod and item.mps and not item.ended
    )


def seen(state: DaemonState, clients: tuple[SeenClient, ...], at: float) -> LastSeen:
    return LastSeen(
        at=at, restarts=state.restarts, servers_lost=state.servers_lost, faults=state.faults, clients=clients
    )


def told(
    node: str,
    uuid: Uuid,
    before: LastSeen,
    state: DaemonState,
    ended: Collection[SeenClient],
    pods: Mapping[str, Mapping[str, Any]],
    now: float,
) -> Iterator[Event]:
    """`ended`: of the clients before, those that are gone without having been asked to. `pods`: this node's, by the uid
    that a SeenClient has.
    """
    when = f"It happened while no agent ran, between {_time(before.at)} and {_time(now)}"
    regarding = {"apiVersion": names.API_VERSION, "kind": "GpuNode", "name": node}
    kind: Literal["Normal", "Warning"] = "Warning"
    fault = _counted(before.faults, state.faults)
    if fault:
        note = f"GPU {uuid}: {state.last_fault}. {when}. {_suspicion(before.clients)}"
        yield Event(regarding, kind, EventReason.GPU_FAULT, "Supervise", note, uuid, happened=True)
    if _counted(before.restarts, state.restarts) or _counted(before.servers_lost, state.servers_lost):
        failure = state.last_failure or "the MPS daemon ended"
        note = f"GPU {uuid}: {failure}; its clients got error 806. {when}."
        yield Event(regarding, kind, EventReason.DAEMON_RESTARTED, "Supervise", note, uuid, happened=True)
    deleted = {f"{it.namespace}/{it.pod}" for it in ended if _is_deleted(pods.get(it.pod_uid))}
    if deleted:
        since = "a fatal fault has hit the MPS server since" if fault else "the MPS server has met no fault since"
        note = f"GPU {uuid}: clients of deleted pods ended and nobody saw to it that it was in order: "
        note += f"{_some(deleted)}. {when}; {since}."
        kind = "Warning" if fault else "Normal"
        yield Event(regarding, kind, EventReason.UNGUARDED_DEPARTURE, "Depart", note, uuid, happened=True)


def _counted(before: int, now: int) -> bool:
    """Whether something happened since. A supervisor counts from 0, so a lower count is a new one's own."""
    return now > before or 0 < now < before


def _is_deleted(pod: Mapping[str, Any] | None) -> bool:
    return pod is None or bool(pod["metadata"].get("deletionTimestamp"))


def _suspicion(clients: Collection[SeenClient]) -> str:
    if not clients:
        return "No client was known before that."
    return f"Clients before that were those of {_some({f'{it.namespace}/{it.pod}' for it in clients})}."


def _some(pods: Collection[str]) -> str:
    more = f" and {len(pods) - PODS_TOLD} more" if len(pods) > PODS_TOLD else ""
    return f"{', '.join(sorted(pods)[:PODS_TOLD])}{more}"


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Handover:
    def __init__(self, root: Path, proc: Path = Path("/proc")) -> None:
        """`root`: of the GPUs' directories."""
        self._root = root
        self._proc = proc
        self._noted: dict[Uuid, LastSeen] = {}
        self._left: dict[Uuid, LastSeen] = {}
        for directory in gpu_dirs(root):
            read = read_model(directory.seen, LastSeen)
            if read.value is not None:
                self._left[directory.uuid] = read.value
            elif not read.absent:
                LOG.warning("what happened while no agent ran is not known: %s", read.reason)

    def take(self, uuid: Uuid) -> LastSeen | None:
        """What an earlier agent left about the GPU, once; None also where the GPU was given back since."""
        left = self._left.pop(uuid, None)
        return left if gpu_dir(self._root, uuid).seen.exists() else None

    def ended(self, uuid: Uuid, clients: tuple[SeenClient, ...]) -> list[SeenClient]:
        """Those that have ended although no agent has asked the GPU's daemon for it."""
        read = read_model(gpu_dir(self._root, uuid).endings, TerminationFile)
        asked: set[tuple[int, int]] = {_key(entry) for entry in (read.value.asked if read.value else ())}
        gone = (it for it in clients if processes.read_start_time(it.pid, self._proc) != it.started)
        return [it for it in gone if _key(it) not in asked]

    def note(self, uuid: Uuid, state: DaemonState, reading: Reading | None, at: float) -> None:
        """Writes down what is news, or due. `reading` None: the clients are not known now. `at`: seconds since 1970."""
        noted = self._noted.get(uuid)
        if reading is None and noted is None:
            return  # an earlier agent knew more
        clients = clients_of(reading) if reading is not None else noted.clients if noted is not None else ()
        found = seen(state, clients, at)
        if noted is not None and found == noted.model_copy(update={"at": at}) and 0 <= at - noted.at < NOTE_SECONDS:
            return
        try:
            write_model(gpu_dir(self._root, uuid).seen, found)
        except OSError as error:
            LOG.warning("GPU %s: what was seen of it could not be noted for the next agent: %s", uuid, error)
        self._noted[uuid] = found


def _key(process: SeenClient | TerminationRecord) -> tuple[int, int]:
    return process.pid, process.started
