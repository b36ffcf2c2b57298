"""What befell a GPU while no agent ran, told once by the next one, as far as it is certain. Pure.

Certain is what differs between the last note of an agent and the first look of its successor: what the GPU's supervisor
has counted in between, and clients that have ended although no agent had asked for that, of pods that were deleted. Not
known, and not told: whether such a client was in the middle of a kernel, what a container ran into whose pod is still
there, who came and went in between, and all of a GPU that was given back.
"""

from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import Field

from gpushare.api import names
from gpushare.api.base import ApiModel
from gpushare.api.conditions import EventReason
from gpushare.api.gpunode import Uuid
from gpushare.kube.announcer import News
from gpushare.mps.wire import DaemonState
from gpushare.node.usage import Reading

PODS_TOLD = 8


class Client(ApiModel, frozen=True):
    """A process that MPS served. `started`, in clock ticks since boot, tells it from a later one of its PID.

    `pod_uid`: the one that its cgroup names; a static pod has another one in the API.
    """

    pid: int
    started: int
    pod_uid: str
    namespace: str
    pod: str


class Seen(ApiModel, frozen=True):
    """seen.json, written and read by the agent alone: one GPU as it was last seen."""

    version: Literal[1] = 1
    at: float = Field(description="Seconds since 1970.")
    restarts: int = 0
    servers_lost: int = 0
    faults: int = 0
    clients: tuple[Client, ...] = ()


def clients_of(reading: Reading) -> tuple[Client, ...]:
    """Those that a successor has to know: of pods, through MPS, and not ended yet."""
    return tuple(
        Client(pid=item.pid, started=item.started, pod_uid=usage.pod_uid, namespace=usage.namespace, pod=usage.pod)
        for usage in reading.usages
        for item in usage.listed
        if usage.pod and item.mps and not item.ended
    )


def seen(state: DaemonState, clients: tuple[Client, ...], at: float) -> Seen:
    return Seen(at=at, restarts=state.restarts, servers_lost=state.servers_lost, faults=state.faults, clients=clients)


def told(
    node: str,
    uuid: Uuid,
    before: Seen,
    state: DaemonState,
    ended: Collection[Client],
    pods: Mapping[str, Mapping[str, Any]],
    now: float,
) -> Iterator[News]:
    """`ended`: of the clients before, those that are gone without having been asked to. `pods`: this node's, by the uid
    that a Client has.
    """
    when = f"It happened while no agent ran, between {_time(before.at)} and {_time(now)}"
    regarding = {"apiVersion": names.API_VERSION, "kind": "GpuNode", "name": node}
    kind: Literal["Normal", "Warning"] = "Warning"
    fault = _counted(before.faults, state.faults)
    if fault:
        note = f"GPU {uuid}: {state.last_fault}. {when}. {_suspicion(before.clients)}"
        yield News(regarding, kind, EventReason.GPU_FAULT, "Supervise", note, uuid, happened=True)
    if _counted(before.restarts, state.restarts) or _counted(before.servers_lost, state.servers_lost):
        failure = state.last_failure or "the MPS daemon ended"
        note = f"GPU {uuid}: {failure}; its clients got error 806. {when}."
        yield News(regarding, kind, EventReason.DAEMON_RESTARTED, "Supervise", note, uuid, happened=True)
    deleted = {f"{it.namespace}/{it.pod}" for it in ended if _is_deleted(pods.get(it.pod_uid))}
    if deleted:
        since = "a fatal fault has hit the MPS server since" if fault else "the MPS server has met no fault since"
        note = f"GPU {uuid}: clients of deleted pods ended and nobody saw to it that it was in order: "
        note += f"{_some(deleted)}. {when}; {since}."
        kind = "Warning" if fault else "Normal"
        yield News(regarding, kind, EventReason.UNGUARDED_DEPARTURE, "Depart", note, uuid, happened=True)


def _counted(before: int, now: int) -> bool:
    """Whether something happened since. A supervisor counts from 0, so a lower count is a new one's own."""
    return now > before or 0 < now < before


def _is_deleted(pod: Mapping[str, Any] | None) -> bool:
    return pod is None or bool(pod["metadata"].get("deletionTimestamp"))


def _suspicion(clients: Collection[Client]) -> str:
    if not clients:
        return "No client was known before that."
    return f"Clients before that were those of {_some({f'{it.namespace}/{it.pod}' for it in clients})}."


def _some(pods: Collection[str]) -> str:
    more = f" and {len(pods) - PODS_TOLD} more" if len(pods) > PODS_TOLD else ""
    return f"{', '.join(sorted(pods)[:PODS_TOLD])}{more}"


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
