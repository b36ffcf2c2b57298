"""The DRA driver's socket in the kubelet's registration folder: there while anything is delivered by claims here.

The kubelet watches the folder, also from its own start on, so it is never asked to register. A socket that somebody
removed, or that an earlier agent left, is replaced within a second.
"""

import asyncio
import logging
from pathlib import Path

import grpc

from gpushare.api import names
from gpushare.node.dra.service import ClaimHooks, Health, Registration, serve
from gpushare.node.registration import Identity, identity

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
        self._server: grpc.aio.Server | None = None
        self._bound: Identity | None = None
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
        await self._stop(CLOSE_SECONDS)

    async def _follow(self) -> None:
        told = ""
        while True:
            try:
                if self._bound is None or identity(self._socket) != self._bound:
                    await self._serve()
                told = ""
            except OSError as error:
                if str(error) != told:
                    LOG.warning("DRA plugin not served, trying again: %s", error)
                told = str(error)
            await asyncio.sleep(POLL_SECONDS)

    async def _serve(self) -> None:
        await self._stop(None)
        server = grpc.aio.server()
        serve(server, Registration(self._socket), self._hooks, self.health)
        # The kubelet passes over names that begin with a dot, and hears of the rename. gRPC unlinks the name it bound
        # whenever it gets to closing an old server, so that is not the name that is served.
        new = self._socket.with_name(f".{self._socket.name}.new")
        new.unlink(missing_ok=True)
        try:
            server.add_insecure_port(f"unix://{new}")
        except RuntimeError as error:
            raise OSError(f"cannot listen at {new}: {error}") from error
        await server.start()
        self._server = server
        new.replace(self._socket)
        self._bound = identity(self._socket)
        LOG.info("DRA plugin %s serves at %s", names.DRA_DRIVER, self._socket)

    async def _stop(self, grace: float | None) -> None:
        if self._bound is not None and identity(self._socket) == self._bound:
            self._socket.unlink(missing_ok=True)
        self._bound = None
        if self._server is not None:
            await self._server.stop(grace)
            self._server = None
