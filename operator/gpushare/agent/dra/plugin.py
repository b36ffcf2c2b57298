"""The DRA driver's socket in the kubelet's registration folder, while a share of this node is delivered by claims.

The kubelet watches the folder and finds the socket there when it starts, so the agent never calls Register. A socket
that was removed, or that an earlier agent left, is replaced within a second.
"""

import asyncio
import logging
from pathlib import Path

from gpushare.agent.dra.claims import ClaimPreparer
from gpushare.agent.dra.service import Health, Registration, services
from gpushare.agent.rpc.sockets import Listener
from gpushare.api import names
from gpushare.messages.log_on_change import LogOnChange

LOG = logging.getLogger(__name__)
POLL_SECONDS = 1.0
CLOSE_SECONDS = 1.0
FOLDER = "plugins_registry"


def is_registered(kubelet_dir: Path, driver: str) -> bool:
    """Whether a DRA driver has its socket in the kubelet's registration folder. Kubernetes' helper for drivers names it
    after the driver, with the UID of its pod where two versions overlap."""
    try:
        return any((kubelet_dir / FOLDER).glob(f"{driver}-*.sock"))
    except OSError:
        return False


class DraPlugin:
    def __init__(self, kubelet_dir: Path, preparer: ClaimPreparer, poll_seconds: float = POLL_SECONDS) -> None:
        """`kubelet_dir`: such as /var/lib/kubelet, at the same place here as for the kubelet."""
        self.health = Health()
        self._socket = kubelet_dir / FOLDER / f"{names.DRA_DRIVER}.sock"
        self._preparer = preparer
        self._listener = Listener(self._socket)
        self._poll_seconds = poll_seconds
        self._problems = LogOnChange(LOG)
        self._following: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Returns at once; serves as soon as the folder exists."""
        if self._following is None:
            self._following = asyncio.create_task(self._follow(), name="DRA plugin")

    async def close(self) -> None:
        """Prepared claims stay prepared; half a minute later the kubelet deletes the node's ResourceSlice."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
            self._following = None
        await self._listener.close(CLOSE_SECONDS)

    async def _follow(self) -> None:
        while True:
            try:
                if not self._listener.in_place:
                    await self._listener.open(services(Registration(self._socket), self._preparer, self.health))
                    LOG.info("DRA plugin %s serves at %s", names.DRA_DRIVER, self._socket)
                self._problems.clear()
            except OSError as error:
                self._problems.log("DRA plugin not served, trying again: %s", error)
            await asyncio.sleep(self._poll_seconds)
