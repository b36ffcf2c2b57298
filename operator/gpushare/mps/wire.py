"""daemon.json and state.json: what agent and supervisor tell each other through the node's directory.

Both are replaced atomically and carry a version, so that an agent and a supervisor of different releases, which
is the normal case during an upgrade, understand each other. Unknown fields are ignored.
"""

from typing import Literal

from pydantic import Field

from gpushare.api.base import ApiModel
from gpushare.api.conditions import DaemonReason
from gpushare.api.gpunode import Limits


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
    stopped: bool = Field(default=False, description="The daemon has ended as asked; its sockets are gone.")

    @property
    def ready(self) -> bool:
        return self.reason is DaemonReason.READY
