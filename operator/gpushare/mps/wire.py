"""daemon.json and state.json: what agent and supervisor tell each other through the node's directory.

Both are replaced atomically and carry a version, so that an agent and a supervisor of different releases, which
is the normal case during an upgrade, understand each other. Unknown fields are ignored.
"""

from typing import Literal

from pydantic import Field

from gpushare.api.base import ApiModel
from gpushare.api.conditions import DaemonReason
from gpushare.api.gpunode import Limits

FRESH_SECONDS = 10.0
"""A supervisor and NVML are read every 2 s; a reading older than five intervals no longer counts."""


class DaemonWanted(ApiModel):
    """daemon.json, written by the agent."""

    version: Literal[1] = 1
    uuid: str
    share: str
    limits: Limits = Field(description="Written to the daemon and the live server, read back.")
    stop: bool = Field(default=False, description="True: take no new clients, quit once no client is left.")


class DaemonState(ApiModel):
    """state.json, written by the supervisor at every change and at least every few seconds."""

    version: Literal[1] = 1
    uuid: str
    share: str
    heartbeat: float = Field(description="CLOCK_BOOTTIME seconds of this writing: it cannot jump.")
    reason: DaemonReason
    message: str = Field(default="", max_length=1024)
    control_pid: int | None = None
    server_pid: int | None = None
    server_status: str = Field(default="", description="get_server_status, such as ACTIVE.")
    in_force: Limits | None = Field(default=None, description="Read back from daemon and live server.")
    restarts: int = 0
    servers_lost: int = Field(default=0, description="Times a server ended though nobody ended it.")
    last_failure: str = Field(default="", max_length=1024, description="How daemon or server ended last, in its words.")
    contexts: int = Field(default=0, ge=0, description="Client contexts that the server holds.")
    faults: int = Field(default=0, description="Times a fatal fault was seen: FAULT, or a server that let the GPU go.")
    last_fault: str = Field(default="", max_length=1024, description="What was told of the last of them.")
    fault_since: float | None = Field(
        default=None, description="CLOCK_BOOTTIME seconds since which the present server is hit by a fatal fault."
    )
    faulted_clients: list[int] = Field(
        default_factory=list, max_length=64, description="PIDs of the clients that a replacement of it waits for."
    )
    stopped: bool = Field(default=False, description="The daemon has ended as asked; its sockets are gone.")

    @property
    def ready(self) -> bool:
        return self.reason is DaemonReason.READY
