"""A gRPC server at the path of a unix socket that others remove, replace, and look for by name.

`Listener` binds another name and renames it to the socket's: nobody finds a socket that does not listen yet, what an
earlier process left there is replaced, and a server that is closed never removes its successor's socket (since Python
3.13 it removes the name that it bound).
"""

from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpushare.agent.rpc.server import RpcServer

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
        self._server: RpcServer | None = None
        self._bound: Identity | None = None

    @property
    def in_place(self) -> bool:
        """False: it was never opened, its socket was removed, or another process' socket has its name."""
        return self._bound is not None and identity(self._socket) == self._bound

    async def open(self, services: Collection[Any]) -> None:
        """Closes the server that was open before. OSError: the socket cannot be made there."""
        await self.close(None)
        server = RpcServer(services)
        # The kubelet passes over names that begin with a dot, and notices the rename.
        new = self._socket.with_name(f".{self._socket.name}.new")
        new.unlink(missing_ok=True)
        try:
            await server.start(new)
        except OSError as error:
            raise OSError(f"cannot listen at {new}: {error}") from error
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
