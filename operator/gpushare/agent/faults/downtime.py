"""What happened to a GPU while no agent ran, reported once by the next agent, as far as it is certain.

Certain is what differs between the last note of an agent and the first reading of its successor: what the GPU's
supervisor has counted in between, and clients that have ended although no agent had them terminated, of pods that were
deleted. Not known, and so not reported: whether such a client was in mid-kernel, why a container of a pod that still
exists ended, which clients came and went in between, and anything of a GPU that was released.

seen.json holds an agent's last note about one GPU. Guarantees: an earlier agent's notes are read before anything is
written over them; a note is at most NOTE_SECONDS older than the agent's end, and younger if the GPU's clients or counts
had just changed. Notes are lost when the node reboots, which ends all clients anyway.
"""

import logging
from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from gpushare.agent.faults.reports import has_counted, lost_clients
from gpushare.agent.observe.usage import Reading
from gpushare.agent.process.processes import identity, is_alive
from gpushare.api import names
from gpushare.api.conditions import EventReason
from gpushare.api.gpunode import Uuid
from gpushare.api.timestamps import format_timestamp
from gpushare.kube.events.event import Event, EventType
from gpushare.kube.pods import Pod
from gpushare.messages.wording import first_names
from gpushare.mps.files import read_model, write_model
from gpushare.mps.layout import gpu_dir, gpu_dirs
from gpushare.mps.terminations import TerminationFile
from gpushare.mps.wire import DaemonState, WireModel
from gpushare.process.procfs import PROC

LOG = logging.getLogger(__name__)

NOTE_SECONDS = 5.0
MAX_PODS_NAMED = 8


class SeenClient(WireModel, frozen=True, kw_only=True):
    """An MPS client. `started`, in clock ticks since boot, distinguishes it from a later process of its PID.

    `pod_uid`: the one that its cgroup names; a static pod has another one in the API.
    """

    pid: int
    started: int
    pod_uid: str
    namespace: str
    pod: str


class LastSeen(WireModel, frozen=True, kw_only=True):
    """seen.json, written and read by the agent alone: the last note about one GPU, at seconds since 1970."""

    version: Literal[1] = 1
    at: float
    restarts: int = 0
    servers_lost: int = 0
    faults: int = 0
    lost_contexts: int = 0
    clients: tuple[SeenClient, ...] = ()


def clients_of(reading: Reading) -> tuple[SeenClient, ...]:
    """The clients that the next agent has to know: MPS clients of pods that were not terminated yet."""
    return tuple(
        SeenClient(pid=item.pid, started=item.started, pod_uid=usage.pod_uid, namespace=usage.namespace, pod=usage.pod)
        for usage in reading.usages
        for item in usage.processes
        if usage.pod and item.mps and not item.terminated
    )


def downtime_events(
    node: str,
    uuid: Uuid,
    before: LastSeen,
    state: DaemonState,
    ended: Collection[SeenClient],
    pods: Mapping[str, Pod],
    now: float,
) -> Iterator[Event]:
    """Pure. `ended`: those of the clients before that have ended without being terminated. `pods`: this node's, by the
    uid that a SeenClient has. `now`: seconds since 1970.
    """
    when = f"It happened while no agent ran, between {_time(before.at)} and {_time(now)}"
    regarding = {"apiVersion": names.API_VERSION, "kind": "GpuNode", "name": node}
    fault = has_counted(before.faults, state.faults)
    if fault:
        note = f"GPU {uuid}: {state.last_fault}. {when}. {_clients_before(before.clients)}"
        yield Event(regarding, "Warning", EventReason.GPU_FAULT, "Supervise", note, uuid, happened=True)
    if has_counted(before.restarts, state.restarts) or has_counted(before.servers_lost, state.servers_lost):
        lost = lost_clients(state.last_failure, state.lost_contexts - before.lost_contexts)
        note = f"GPU {uuid}: {lost}. {when}. {_clients_before(before.clients)}"
        yield Event(regarding, "Warning", EventReason.DAEMON_RESTARTED, "Supervise", note, uuid, happened=True)
    deleted = {_name(client) for client in ended if _is_deleted(pods.get(client.pod_uid))}
    if deleted:
        since = "has met a fatal fault since" if fault else "has met no fault since"
        note = (
            f"GPU {uuid}: clients of deleted pods ended without being terminated in order: {_names(deleted)}. {when}; "
            f"the MPS server {since}."
        )
        severity: EventType = "Warning" if fault else "Normal"
        yield Event(regarding, severity, EventReason.UNGUARDED_DEPARTURE, "Depart", note, uuid, happened=True)


def _is_deleted(pod: Pod | None) -> bool:
    return pod is None or bool(pod["metadata"].get("deletionTimestamp"))


def _clients_before(clients: Collection[SeenClient]) -> str:
    if not clients:
        return "No client was known before that."
    return f"Clients before that were those of {_names({_name(client) for client in clients})}."


def _name(client: SeenClient) -> str:
    return f"{client.namespace}/{client.pod}"


def _names(pods: Collection[str]) -> str:
    return first_names(sorted(pods), MAX_PODS_NAMED)


def _time(seconds: float) -> str:
    return format_timestamp(datetime.fromtimestamp(seconds, UTC))


class Handover:
    """Reads the notes of an earlier agent and writes this agent's own."""

    def __init__(self, root: Path, proc: Path = PROC) -> None:
        """`root`: of the GPUs' directories. Blocks."""
        self._root = root
        self._proc = proc
        self._saved: dict[Uuid, LastSeen] = {}
        self._inherited: dict[Uuid, LastSeen] = {}
        for directory in gpu_dirs(root):
            read = read_model(directory.seen, LastSeen)
            if read.value is not None:
                self._inherited[directory.uuid] = read.value
            elif not read.absent:
                LOG.warning("what happened while no agent ran is not known: %s", read.reason)

    def take(self, uuid: Uuid) -> LastSeen | None:
        """The note of an earlier agent about the GPU, once. None if the GPU was released since, too."""
        inherited = self._inherited.pop(uuid, None)
        return inherited if inherited is not None and gpu_dir(self._root, uuid).seen.exists() else None

    def ended(self, uuid: Uuid, clients: tuple[SeenClient, ...]) -> list[SeenClient]:
        """The clients that have ended although no agent asked the GPU's MPS daemon to terminate them."""
        read = read_model(gpu_dir(self._root, uuid).endings, TerminationFile)
        terminated = {identity(record) for record in (read.value.asked if read.value else ())}
        return [client for client in clients if not is_alive(client, self._proc) and identity(client) not in terminated]

    def save(self, uuid: Uuid, state: DaemonState, reading: Reading | None, at: float) -> None:
        """Writes a note if something changed, or if one is due.

        `reading` None: the clients are not known now. `at`: seconds since 1970.
        """
        saved = self._saved.get(uuid)
        if reading is None and saved is None:
            return  # an earlier agent knew more
        clients = clients_of(reading) if reading is not None else saved.clients if saved is not None else ()
        note = LastSeen(
            at=at,
            restarts=state.restarts,
            servers_lost=state.servers_lost,
            faults=state.faults,
            lost_contexts=state.lost_contexts,
            clients=clients,
        )
        if saved is not None and note == replace(saved, at=at) and 0 <= at - saved.at < NOTE_SECONDS:
            return
        try:
            write_model(gpu_dir(self._root, uuid).seen, note)
        except OSError as error:
            LOG.warning("GPU %s: what was seen of it could not be saved for the next agent: %s", uuid, error)
        self._saved[uuid] = note
