"""A client with a class, as the front library is one, for the tests of the broker; or one that does as it likes.

Run as a program it does what each line of its standard input says: a method's name and its arguments, as JSON.
"""

import asyncio
import fcntl
import json
import mmap
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.unit.mps.broker.fake_daemon import CREDENTIALS, GREETING, attach, connect

PAGES, BUSY, MAPPED = (number.to_bytes(4, "little") for number in (0x67700002, 0x67700003, 0x6D737067))
ADD_SEALS, FUTURE_WRITE = 1033, 0x10
ANSWER = struct.Struct("<8I2Q")
LAUNCHES_AT, LAST_LAUNCH_AT, ACTIVE_AT, GAVE_WAY_AT, GAVE_WAY_TO_AT, WORD_AT = 8, 16, 24, 40, 128, 8


class PagedClient:
    """`path`: the broker's socket."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.descriptors: list[int] = []
        self.maps: list[mmap.mmap] = []
        self.kept: list[int] = []

    def attach(self) -> bool:
        return bool(attach(self.path))

    def ask(
        self, request: str = "PAGES", says: str = MAPPED.hex(), seal: bool = True, hangs: bool = False
    ) -> list[int]:
        """The answer's numbers after its magic and version; empty: there is none. `says`: after new pages, in hex."""
        with connect(self.path) as sock:
            assert sock.recv(64) == GREETING
            sock.send(CREDENTIALS)
            sock.send(PAGES if request == "PAGES" else BUSY)
            data, descriptors, _, _ = socket.recv_fds(sock, 64, 32)
            if not data:
                return []
            self.kept += self.descriptors
            self.descriptors, self.maps = list(descriptors), []
            magic, version, *numbers = ANSWER.unpack(data)
            assert (magic, version) == (0x50737067, 1)
            own = numbers[3] + numbers[4]
            for at, descriptor in enumerate(descriptors):
                access = mmap.PROT_READ | (mmap.PROT_WRITE if at < own else 0)
                self.maps.append(mmap.mmap(descriptor, 4096, mmap.MAP_SHARED, access))
            if seal and numbers[4]:
                fcntl.fcntl(descriptors[1], ADD_SEALS, FUTURE_WRITE)
            if own and says:
                sock.send(bytes.fromhex(says))
            if hangs:
                sock.recv(1)
            return numbers

    def let_go(self) -> None:
        for descriptor in (*self.kept, *self.descriptors):
            os.close(descriptor)
        self.kept, self.descriptors, self.maps = [], [], []

    def put(self, page: int, at: int, *numbers: int) -> None:
        for place, number in enumerate(numbers):
            self.maps[page][at + 8 * place : at + 8 * place + 8] = number.to_bytes(8, "little")

    def fill(self, page: int, byte: int) -> None:
        self.maps[page][:] = bytes([byte]) * 4096

    def word(self, page: int) -> int:
        return int.from_bytes(self.maps[page][WORD_AT : WORD_AT + 8], "little")

    def attempts(self, page: int) -> list[str]:
        """What a process can do to a page of which it has a descriptor, by itself and opened again: what it got away
        with.
        """
        again = os.open(f"/proc/self/fd/{self.descriptors[page]}", os.O_RDWR)
        attempts = {
            "write": lambda to: os.pwrite(to, b"x", WORD_AT),
            "map": lambda to: mmap.mmap(to, 4096),
            "grow": lambda to: os.ftruncate(to, 8192),
            "shrink": lambda to: os.ftruncate(to, 0),
            "allocate": lambda to: os.posix_fallocate(to, 0, 1 << 20),
            "write beyond": lambda to: os.pwrite(to, b"x", 4096),
            "seal": lambda to: fcntl.fcntl(to, ADD_SEALS, fcntl.F_SEAL_WRITE),
        }
        done = []
        for descriptor in (self.descriptors[page], again):
            for name, attempt in attempts.items():
                try:
                    attempt(descriptor)
                    done.append(name)
                except (OSError, ValueError):
                    pass
        os.close(again)
        return done


class PagedProcess:
    """A PagedClient in a process of its own: `do("ask", "BUSY")`."""

    def __init__(self, path: Path) -> None:
        command = [sys.executable, "-m", "tests.unit.mps.broker.serving.paged_client", str(path)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self._process.pid

    async def do(self, method: str, *arguments: Any, **named: Any) -> Any:
        return await asyncio.to_thread(self._do, [method, arguments, named])

    def _do(self, what: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(what), file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())

    async def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        await asyncio.to_thread(self._process.wait, 10)


def own_set_of(numbers: list[int]) -> tuple[int, int, int, int]:
    """Class, and how many descriptors of each kind, by an answer."""
    return numbers[0], numbers[3], numbers[4], numbers[5]


if __name__ == "__main__":
    client = PagedClient(Path(sys.argv[1]))
    for line in sys.stdin:
        method, arguments, named = json.loads(line)
        print(json.dumps(getattr(client, method)(*arguments, **named)), flush=True)
