"""A gRPC server at the path of a unix socket that others remove, replace, and look for by name.

gRPC unlinks the name that it bound when it closes an old server, at any later time. So `Listener` binds another name
and renames it to the socket's, which also replaces what an earlier process left there.
"""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import grpc

OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]
"""Channel options: without them gRPC shares a connection with earlier channels, and their back-off with it."""

Identity = tuple[int, int]


def identity(path: Path) -> Identity | None:
    """Tells a socket from a later one of the same name; None: there is none. An inode number alone may be reused."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_ctime_ns


class Listener:
    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._server: grpc.aio.Server | None = None
        self._bound: Identity | None = None

    @property
    def in_place(self) -> bool:
        """False: it was never opened, its socket was removed, or another process' socket has its name."""
        return self._bound is not None and identity(self._socket) == self._bound

    async def open(self, add_services: Callable[[grpc.aio.Server], None]) -> None:
        """Closes the server that was open before. OSError: the socket cannot be made there."""
        await self.close(None)
        server = grpc.aio.server()
        add_services(server)
        # The kubelet passes over names that begin with a dot, and notices the rename.
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
        if self.in_place:
            # It stays on a read-only file system, say; a socket without its server refuses whoever connects.
            with suppress(OSError):
                self._socket.unlink(missing_ok=True)
        self._bound = None
        if self._server is not None:
            await self._server.stop(grace)
            self._server = None
