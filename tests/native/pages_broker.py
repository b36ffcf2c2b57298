"""Stands in for the attach broker as far as classes need it: hands out pages, and has protected clients of its own.

The same messages as gpushare.mps.broker, in a thread of this process and for whoever connects: the class of a process
is what `class_of` says of its PID. For tests of the front library, and for measurements without pods.
"""

import array
import fcntl
import mmap
import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PAGES, BUSY, PLACE, MAPPED = 0x67700002, 0x67700003, 0x67700004, 0x6D737067
NOT_NEEDED, WAITING, GIVEN, REFUSED = range(4)
PROTECTED, NORMAL, BEST_EFFORT = 1, 2, 3
CLASSES = {"Protected": PROTECTED, "Normal": NORMAL, "BestEffort": BEST_EFFORT}
BOARD_MAGIC, ACTIVITY_MAGIC, BUSY_MAGIC, ANSWER_MAGIC = 0x42737067, 0x41737067, 0x57737067, 0x50737067
PLACE_MAGIC = 0x4C737067
FUTURE_WRITE = 0x10
PAGE_BYTES = 4096
_ACTIVITY = struct.Struct("<2I8Q2IQ5Q16Q")
_FIELDS = ("launches", "last_launch", "active", "active_since", "gave_way", "held_back", "by_floor", "on_part")


def declared(pid: int, variable: str) -> str:
    """Of a process by its own environment, which no real broker would believe."""
    entries = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    return next((entry.partition("=")[2] for entry in entries if entry.startswith(f"{variable}=")), "")


def declared_class(pid: int) -> int:
    """0: none."""
    return CLASSES.get(declared(pid, "GPUSHARE_CLASS"), 0)


@dataclass
class Page:
    """A memfd of a page, sealed against another size. `word` of a busy page, for a client that is not a process."""

    descriptor: int
    _word: mmap.mmap | None = None
    count: int = 0

    def sealed(self) -> bool:
        return bool(fcntl.fcntl(self.descriptor, fcntl.F_GET_SEALS) & FUTURE_WRITE)

    def read(self) -> bytes:
        return os.pread(self.descriptor, PAGE_BYTES, 0)

    def word(self) -> int:
        return int(struct.unpack_from("<Q", self.read(), 8)[0])

    def set_word(self, busy: bool, again: bool = True) -> None:
        """`again`: a new period begins, or the one under way is renewed."""
        if self._word is None:
            self._word = mmap.mmap(self.descriptor, PAGE_BYTES)
        self.count += again
        self._word[8:16] = (self.count << 1 | busy).to_bytes(8, "little")  # at once: struct would write zeros first


@dataclass
class Pages:
    """Of one process. `busy` None: it is not protected."""

    kind: int
    activity: Page
    busy: Page | None = None
    mapped: bool = False
    known: bool = False
    """Whoever asks from now on hears of it."""
    asked: list[int] = field(default_factory=list)

    def counted(self) -> dict[str, Any]:
        content = self.activity.read()
        magic, _, *values = _ACTIVITY.unpack_from(content)
        fields: dict[str, Any] = dict(zip(_FIELDS, values[:8], strict=True))
        fields |= {"magic": magic, "part_sms": values[8], "all_sms": values[9], "unpaced": values[10]}
        longest: dict[str, int] = {}
        for place in range(256, 256 + 16 * 64, 64):
            duration = int.from_bytes(content[place : place + 8], "little")
            name = content[place + 8 : place + 64].partition(b"\0")[0].decode("ascii", "replace")
            longest |= {name: duration} if duration else {}
        return fields | {"gave_way_to": values[16:32], "longest": longest}


def new_page(magic: int) -> Page:
    descriptor = os.memfd_create("page", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, PAGE_BYTES)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
    os.pwrite(descriptor, struct.pack("<2I", magic, 1), 0)
    return Page(descriptor)


class PagesBroker:
    """Listens in `directory`, which is GPUSHARE_ATTACH of its clients, until it is closed."""

    def __init__(
        self,
        directory: Path,
        class_of: Callable[[int], int] = declared_class,
        sm_percent: int | Callable[[int], int] = 0,
        floor_percent: int = 5,
    ) -> None:
        """`sm_percent`: of every process, or of each by its PID."""
        self._directory, self._class_of = directory, class_of
        self._sm_percent, self._floor_percent = sm_percent, floor_percent
        self.processes: dict[int, Pages] = {}
        self.own: list[Page] = []
        self.silent = False
        """Who asks is greeted and hears nothing more."""
        self.places = 0
        self.waiting: dict[int, socket.socket] = {}
        """Who asked for a place, by PID, and has not hung up."""
        self._lock = threading.Lock()
        directory.mkdir(parents=True, exist_ok=True)
        self._board_file = os.open(directory / "board", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        os.ftruncate(self._board_file, PAGE_BYTES)
        self._board = mmap.mmap(self._board_file, PAGE_BYTES)
        self._number, self._generation = time.time_ns(), 1
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        (directory / "control").unlink(missing_ok=True)
        self._listener.bind(str(directory / "control"))
        self._listener.listen(64)
        self._write_board()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def __enter__(self) -> "PagesBroker":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._listener.fileno() >= 0:
            self._listener.shutdown(socket.SHUT_RDWR)
            self._thread.join(5)
            self._listener.close()

    def has_places(self, count: int) -> None:
        self.places = count
        self._change()

    def say(self, pid: int, state: int, position: int = 0, waiting: int = 0) -> None:
        """To a process that asked for a place."""
        self.waiting[pid].send(struct.pack("<6I", PLACE_MAGIC, 1, state, position, waiting, self.places))

    def protected(self) -> Page:
        """A protected client that is not a process: whoever asks from now on reads its word."""
        page = new_page(BUSY_MAGIC)
        self.own.append(page)
        self._change()
        return page

    def remove(self, page: Page) -> None:
        self.own.remove(page)
        self._change()

    def _change(self) -> None:
        with self._lock:
            self._generation += 1
            self._write_board()

    def _write_board(self) -> None:
        struct.pack_into("<2I", self._board, 0, BOARD_MAGIC, 1)
        self._board[24:28] = self.places.to_bytes(4, "little")
        self._board[16:24] = self._generation.to_bytes(8, "little")
        self._board[8:16] = self._number.to_bytes(8, "little")

    def _serve(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(sock,), daemon=True).start()

    def _answer(self, sock: socket.socket) -> None:
        with sock:
            sock.settimeout(2)
            pid = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
            try:
                sock.send(b"OUTBHELL\0")
                if self.silent:
                    sock.recv(64)
                    sock.recv(64)
                    time.sleep(2)
                    return
                if sock.recv(64) != b"OUTBCRED\0":
                    return
                self._give(sock, pid, int.from_bytes(sock.recv(64), "little"))
            except (OSError, TimeoutError):
                return

    def _give(self, sock: socket.socket, pid: int, request: int) -> None:
        if request == PLACE:
            self._wait(sock, pid)
            return
        kind = self._class_of(pid)
        own: list[Page] = []
        if request == PAGES and kind:
            busy = new_page(BUSY_MAGIC) if kind == PROTECTED else None
            before = self.processes.get(pid)
            pages = Pages(kind, new_page(ACTIVITY_MAGIC), busy, asked=before.asked if before else [])
            self.processes[pid] = pages
            own = [pages.activity, *([busy] if busy else [])]
        if pid in self.processes:
            self.processes[pid].asked.append(request)
        others = self._others(pid) if kind == BEST_EFFORT else []
        self._send(sock, (kind, self._percent(pid), self._floor_percent), own, others)
        if own and int.from_bytes(sock.recv(64), "little") == MAPPED:
            self.processes[pid].mapped = True
            if kind == PROTECTED:
                self._change()
            self.processes[pid].known = True

    def _wait(self, sock: socket.socket, pid: int) -> None:
        sock.settimeout(None)
        self.waiting[pid] = sock
        sock.recv(1)
        self.waiting.pop(pid, None)

    def _others(self, pid: int) -> list[Page]:
        processes = [
            pages for other, pages in self.processes.items() if other != pid and Path(f"/proc/{other}").exists()
        ]
        return [*self.own, *(pages.busy for pages in processes if pages.busy and pages.mapped and pages.busy.sealed())]

    def _percent(self, pid: int) -> int:
        return self._sm_percent if isinstance(self._sm_percent, int) else self._sm_percent(pid)

    def _send(self, sock: socket.socket, terms: tuple[int, int, int], own: list[Page], others: list[Page]) -> None:
        counts = (1, len(own) - 1) if own else (0, 0)
        answer = struct.pack("<8I2Q", ANSWER_MAGIC, 1, *terms, *counts, len(others), self._number, self._generation)
        reads = [os.open(f"/proc/self/fd/{page.descriptor}", os.O_RDONLY | os.O_CLOEXEC) for page in others]
        descriptors = array.array("i", [*(page.descriptor for page in own), *reads])
        sock.sendmsg([answer], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)] if descriptors else [])
        for descriptor in reads:
            os.close(descriptor)
