"""The board of one GPU: a file beside the broker's socket, by which clients see that there is something to ask for.

Guarantees: the file stays the same for as long as its directory lives, since clients have it mapped; each number
changes at once. A file system without room is an OSError before anything is mapped, and not the end of this process.
"""

import asyncio
import mmap
import os
from pathlib import Path

from gpushare.mps.pages.layout import BOARD_MAGIC, HEAD, PAGE_BYTES, VERSION
from gpushare.process.threads import start_thread

MODE = 0o644
_BROKER, _GENERATION, _PLACES = 1, 2, 3
"""Which of the file's words of 8 bytes they are."""


class Board:
    """`broker`: another one of each broker. `generation`: another one when a protected process came or went."""

    def __init__(self, path: Path, broker: int) -> None:
        """Clients that have pages of an earlier broker ask for new ones from now on, so it listens before. OSError."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, MODE)
        try:
            os.fchmod(descriptor, MODE)
            os.posix_fallocate(descriptor, 0, PAGE_BYTES)
            os.pwrite(descriptor, HEAD.pack(BOARD_MAGIC, VERSION), 0)
            self._words = memoryview(mmap.mmap(descriptor, PAGE_BYTES)).cast("Q")
        finally:
            os.close(descriptor)
        self.broker = broker
        self.generation = self._words[_GENERATION]
        self.change()
        self._words[_BROKER] = broker

    def show_places(self, places: int) -> None:
        """So many places the GPU has; 0: no queue, and nobody asks for one."""
        if self._words[_PLACES] != places:
            self._words[_PLACES] = places

    def change(self) -> None:
        """A protected process came or went."""
        self.generation = (self.generation + 1) % 2**64
        self._words[_GENERATION] = self.generation


async def open_board(path: Path, broker: int) -> Board:
    """Opens it in a thread. Whoever is, or becomes, the user of its file may have a lease on it while no broker has it
    open, and opening it to write takes until the kernel has broken that (fs.lease-break-time). OSError.
    """
    loop = asyncio.get_running_loop()
    opened: asyncio.Future[Board] = loop.create_future()

    def settle(board: Board | None, error: OSError | None) -> None:
        if opened.cancelled():
            return
        if board is not None:
            opened.set_result(board)
        elif error is not None:
            opened.set_exception(error)

    def body() -> None:
        board, failed = None, None
        try:
            board = Board(path, broker)
        except OSError as error:
            failed = error
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, board, failed)

    start_thread(body, name="board")
    return await opened
