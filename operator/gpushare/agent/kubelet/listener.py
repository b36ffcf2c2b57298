"""A gRPC server at the path of a unix socket that others remove, replace, and look for by name.

gRPC unlinks the name that it bound whenever it gets to closing an old server. So it binds another one, and a rename
puts the socket where it belongs, over what an earlier process left there.
"""

from collections.abc import Callable
from pathlib import Path

import grpc

from gpushare.agent.kubelet.registration import Identity, identity


class Listener:
    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._server: grpc.aio.Server | None = None
        self._bound: Identity | None = None

    @property
    def there(self) -> bool:
        """False: never opened, or somebody else's socket, or none, has its place."""
        return self._bound is not None and identity(self._socket) == self._bound

    async def open(self, add_services: Callable[[grpc.aio.Server], None]) -> None:
        """Replaces what was open before. OSError: there is no listening there."""
        await self.close(None)
        server = grpc.aio.server()
        add_services(server)
        # The kubelet passes over names that begin with a dot, and hears of the rename.
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

    async def close(self, grace: float | None) -> None:
        """`grace`: seconds for the calls under way; None: they are broken off."""
        if self.there:
            self._socket.unlink(missing_ok=True)
        self._bound = None
        if self._server is not None:
            await self._server.stop(grace)
            self._server = None
