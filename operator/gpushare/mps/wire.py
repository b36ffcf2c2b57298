"""daemon.json and state.json, by which agent and supervisor communicate through the node's directory.

Both are replaced atomically and carry a version, because during an upgrade agent and supervisor are of different
releases. Unknown fields are ignored.
"""

from typing import Literal

from pydantic import Field

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
    broker: bool = Field(default=False, description="Clients attach through the pod's attach broker (broker.json).")

    @property
    def ready(self) -> bool:
        return self.reason is DaemonReason.READY


BROKER_UID = 65534
"""Whom the attach broker runs as: `nobody`, who owns nothing else on the node."""


class BrokerState(ApiModel):
    """broker.json, written by the attach broker twice a second."""

    version: Literal[1] = 1
    uuid: str
    heartbeat: float = Field(description="CLOCK_BOOTTIME seconds.")
    listening: bool = Field(description="Containers can attach.")
    attached: int = Field(default=0, ge=0, description="Connections that attached, since this broker started.")
    refused: int = Field(default=0, ge=0, description="Connections refused: commands, bad messages, above the bounds.")
    problem: str = Field(default="", description="Why nobody can attach; empty otherwise.")
