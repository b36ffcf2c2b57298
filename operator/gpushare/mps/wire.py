"""daemon.json and state.json, by which agent and supervisor communicate through the node's directory.

Both are replaced atomically and carry a version, because during an upgrade agent and supervisor are of different
releases. Unknown fields are ignored. A reason that only the other release knows is told in its words, and hides nothing
else of the file: without the server's PID nobody could end a departing client in order.
"""

from enum import StrEnum
from typing import Any, Literal

from pydantic import Field, model_validator

from gpushare.api.base import ApiModel
from gpushare.api.conditions import DaemonReason
from gpushare.api.gpunode import Limits

FRESH_SECONDS = 10.0
"""Supervisor and NVML are read every 2 s. A reading that is older than five intervals no longer counts."""


class DesiredDaemon(ApiModel):
    """daemon.json, written by the agent."""

    version: Literal[1] = 1
    uuid: str
    share: str
    limits: Limits = Field(description="To be written to the daemon and the running server, and read back.")
    stop: bool = Field(default=False, description="True: refuse new clients, and quit once there is no client.")
    shows_grant: bool = Field(
        default=False,
        description="Containers see their grant as the GPU's memory. For an agent that does not know the share yet.",
    )


class DaemonState(ApiModel):
    """state.json, written by the supervisor at every change and at least every few seconds."""

    version: Literal[1] = 1
    uuid: str
    share: str
    heartbeat: float = Field(description="CLOCK_BOOTTIME seconds at this writing: a clock that cannot jump.")
    reason: DaemonReason
    message: str = Field(default="", max_length=1024)
    control_pid: int | None = None
    server_pid: int | None = None
    server_status: str = Field(default="", description="get_server_status, such as ACTIVE.")
    in_force: Limits | None = Field(default=None, description="Read back from daemon and live server.")
    restarts: int = 0
    servers_lost: int = Field(default=0, description="Times a server ended that the supervisor had not ended.")
    last_failure: str = Field(default="", max_length=1024, description="How daemon or server ended last.")
    contexts: int = Field(default=0, ge=0, description="Client contexts that the server holds.")
    faults: int = Field(default=0, description="Number of fatal faults: a server in FAULT, or one that let the GPU go.")
    last_fault: str = Field(default="", max_length=1024, description="The message of the last fault.")
    fault_since: float | None = Field(
        default=None, description="CLOCK_BOOTTIME seconds when the current server was first observed in FAULT."
    )
    faulted_clients: list[int] = Field(
        default_factory=list,
        max_length=64,
        description="PIDs that keep the server from being replaced.",
    )
    stopped: bool = Field(default=False, description="The daemon has ended as requested; its sockets are gone.")

    @model_validator(mode="before")
    @classmethod
    def _of_another_release(cls, data: Any) -> Any:
        return _known_reason(data, DaemonReason, DaemonReason.UNKNOWN, 1024)

    @property
    def ready(self) -> bool:
        return self.reason is DaemonReason.READY


BROKER_UID = 65534
"""Whom the attach broker runs as: `nobody`, who owns nothing else on the node."""


class ClientGrant(ApiModel):
    """What each process of a container may use, and how many of them may attach."""

    threads: int = Field(ge=1, le=100, description="Percent of the SMs, for each process.")
    memory_mib: int = Field(ge=1, description="MiB, for each process.")
    processes: int = Field(ge=1)


class TurnAnswer(ApiModel):
    """The supervisor's answer to a ClientGrant, by which the broker asks for a turn: one of the two is set."""

    server_pid: int = Field(default=0, description="Its limits are the grant's now, until the broker hangs up.")
    wait: str = Field(default="", max_length=512, description="Why there is no turn now.")


class GrantedContainer(ApiModel):
    name: str
    id: str = Field(default="", description="The runtime's; empty until the pod's status shows it.")
    grant: ClientGrant | None = Field(default=None, description="None: it holds no part of this GPU.")


class GrantedPod(ApiModel):
    """A pod that holds a part of this GPU, with all its containers."""

    uid: str = Field(description="As the kubelet names the pod's cgroups.")
    namespace: str
    name: str
    containers: list[GrantedContainer] = Field(max_length=128)


class GpuGrants(ApiModel):
    """grants.json, written by the agent: who may attach to this GPU."""

    version: Literal[1] = 1
    uuid: str
    share: str
    closed: str = Field(default="", description="Why the GPU takes no new client now; empty: it takes them.")
    pods: list[GrantedPod] = Field(default_factory=list, max_length=256)


def _known_reason(data: Any, known: type[StrEnum], unknown: StrEnum, longest: int) -> Any:
    """`data` with the reason `unknown` in the place of one that is not `known`, which its message then tells."""
    reason = data.get("reason") if isinstance(data, dict) else None
    if not isinstance(reason, str):
        return data
    try:
        known(reason)
    except ValueError:
        return {**data, "reason": unknown, "message": f"{reason[:64]}: {data.get('message', '')}"[:longest]}
    return data


class RefusedAttach(StrEnum):
    """Why the broker refused a process."""

    NO_GRANT = "NoGrant"
    TOO_MANY_PROCESSES = "TooManyProcesses"
    GPU_CLOSED = "GpuClosed"
    STALLED = "AttachStalled"
    COMMAND = "ControlCommand"
    PROTOCOL = "ProtocolError"
    SERVER_HUNG = "ServerHung"
    OTHER = "Other"  # a broker of another release has a reason that this one has no word for; message has it


class Arrival(ApiModel):
    """A process that attached. Its container is empty where no file named it."""

    pid: int
    pod_uid: str = ""
    container: str = ""
    at: float = Field(description="CLOCK_BOOTTIME seconds.")


class AttachRefusal(ApiModel):
    """What was refused to one container for one reason. `pod_uid` is empty for a process of no pod."""

    reason: RefusedAttach
    pod_uid: str = ""
    container: str = ""
    container_id: str = ""
    message: str = Field(max_length=512, description="Of the latest one.")
    count: int = Field(ge=1)
    at: float = Field(description="CLOCK_BOOTTIME seconds of the latest one.")

    @model_validator(mode="before")
    @classmethod
    def _of_another_release(cls, data: Any) -> Any:
        return _known_reason(data, RefusedAttach, RefusedAttach.OTHER, 512)


MAX_ARRIVALS, MAX_REFUSALS = 64, 32


class BrokerState(ApiModel):
    """broker.json, written by the attach broker at each change and at least every 2 s."""

    version: Literal[1] = 1
    uuid: str
    heartbeat: float = Field(description="CLOCK_BOOTTIME seconds.")
    listening: bool = Field(description="Containers can attach.")
    attached: int = Field(default=0, ge=0, description="Connections that attached, since this broker started.")
    refused: int = Field(default=0, ge=0, description="Connections refused, since this broker started.")
    problem: str = Field(default="", description="Why nobody can attach; empty otherwise.")
    arrivals: list[Arrival] = Field(
        default_factory=list, max_length=MAX_ARRIVALS, description="Of processes that live, and of the latest ones."
    )
    refusals: list[AttachRefusal] = Field(
        default_factory=list, max_length=MAX_REFUSALS, description="The latest, oldest first."
    )
