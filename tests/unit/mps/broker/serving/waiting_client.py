"""A CUDA process by its connections, for the tests of the queue: `cuInit`, contexts, and asking for a place before one.

Run as a program it does what each line of its standard input says: a method's name and its arguments, as JSON.
"""

import asyncio
import json
import select
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpushare.mps.attach_protocol import PlaceState, Request, parse_place_answer, request_message
from gpushare.process.procfs import Owner
from tests.unit.mps.broker.fake_daemon import CREDENTIALS, GREETING, attach, connect


class WaitingClient:
    """`path`: the broker's socket."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._asking: socket.socket | None = None

    def look(self, greeted: bool = False) -> None:
        """The first connection of `cuInit`. `greeted`: it hangs up once it is, and has not read that."""
        with connect(self._path) as sock:
            if greeted:
                select.select([sock], [], [])

    def attach(self) -> bool:
        """The second one, or that of a context. False: refused."""
        return bool(attach(self._path))

    def cu_init(self) -> bool:
        self.look()
        return self.attach()

    def ask(self, says_more: bool = False) -> None:
        """Asks for a place, as the library in front of the driver's does."""
        self._asking = connect(self._path, 20.0)
        assert self._asking.recv(64) == GREETING
        self._asking.send(CREDENTIALS)
        self._asking.send(request_message(Request.PLACE))
        if says_more:
            self._asking.send(b"more")

    def hear(self) -> list[int] | None:
        """State, position, how many wait, and places; None: the broker has hung up."""
        assert self._asking is not None
        with suppress(ConnectionError):
            message = self._asking.recv(64)
            if message:
                answer = parse_place_answer(message)
                return [answer.state, answer.position, answer.waiting, answer.places]
        return None

    def wait_for_place(self) -> int:
        """Asks until it has heard the last word, also at the next broker. Returns the state."""
        while True:
            self.ask()
            while (heard := self.hear()) is not None:
                if heard[0] != PlaceState.WAITING:
                    return heard[0]

    def hang_up(self) -> None:
        assert self._asking is not None
        self._asking.close()


class WaitingProcess:
    """A WaitingClient in a process of its own, of the pod whose uid is its last argument: `await do("attach")`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.pid = process.pid

    @classmethod
    async def start(cls, path: Path, pod: str) -> "WaitingProcess":
        command = [sys.executable, "-m", "tests.unit.mps.broker.serving.waiting_client", str(path), pod]
        pipe = asyncio.subprocess.PIPE
        return cls(await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe))

    async def do(self, method: str, *arguments: Any, **named: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([method, arguments, named]).encode() + b"\n")
        async with asyncio.timeout(30):
            return json.loads(await self._process.stdout.readline())

    def starts(self, method: str, *arguments: Any) -> "asyncio.Task[Any]":
        return asyncio.create_task(self.do(method, *arguments))

    async def end(self) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()


def pod_of(pid: int) -> str:
    """The last argument of its command line; empty for a process of another program."""
    with suppress(OSError):
        *_, pod, _ = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        return pod
    return ""


def owners(pid: int) -> Sequence[Owner]:
    """As the broker asks for them: the pod's only container has its uid for an id."""
    uid = pod_of(pid)
    return (Owner(uid, uid),)


if __name__ == "__main__":
    client = WaitingClient(Path(sys.argv[1]))
    for line in sys.stdin:
        method, arguments, named = json.loads(line)
        print(json.dumps(getattr(client, method)(*arguments, **named)), flush=True)
