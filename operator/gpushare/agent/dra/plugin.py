"""The DRA driver's socket in the kubelet's registration folder: there while anything is delivered by claims here.

The kubelet watches the folder, also from its own start on, so it is never asked to register. A socket that somebody
removed, or that an earlier agent left, is replaced within a second.
"""

import asyncio
import logging
from pathlib import Path

import grpc

from gpushare.agent.dra.service import ClaimHooks, Health, Registration, serve
from gpushare.agent.kubelet.listener import Listener
from gpushare.api import names

LOG = logging.getLogger(__name__)
POLL_SECONDS = 1.0
CLOSE_SECONDS = 1.0
FOLDER = "plugins_registry"


class DraPlugin:
    def __init__(self, kubelet_dir: Path, hooks: ClaimHooks) -> None:
        """`kubelet_dir`: such as /var/lib/kubelet, at the same place here as for the kubelet."""
        self.health = Health()
        self._socket = kubelet_dir / FOLDER / f"{names.DRA_DRIVER}.sock"
        self._hooks = hooks
        self._listener = Listener(self._socket)
        self._following: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Returns at once; serves as soon as there is a folder."""
        if self._following is None:
            self._following = asyncio.create_task(self._follow(), name="DRA plugin")

    async def close(self) -> None:
        """The kubelet keeps what is prepared; half a minute later it deletes the node's ResourceSlice."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
            self._following = None
        await self._listener.close(CLOSE_SECONDS)

    async def _follow(self) -> None:
        told = ""
        while True:
            try:
                if not self._listener.there:
                    await self._listener.open(self._add)
                    LOG.info("DRA plugin %s serves at %s", names.DRA_DRIVER, self._socket)
                told = ""
            except OSError as error:
                if str(error) != told:
                    LOG.warning("DRA plugin not served, trying again: %s", error)
                told = str(error)
            await asyncio.sleep(POLL_SECONDS)

    def _add(self, server: grpc.aio.Server) -> None:
        serve(server, Registration(self._socket), self._hooks, self.health)
