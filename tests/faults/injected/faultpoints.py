"""Ends its process at a chosen write, as a power cut would. Loaded by a .pth file into every Python of one image.

No list of writes is kept: Python itself and the libraries report them. Files, directories, links and signals by audit
events; requests that change something by aiohttp's tracing; what is said to a socket file by `socket`; answers to the
kubelet by grpclib. Each is a *point*: part, kind, target without what is particular to this run, and who asked for it.
`hits.jsonl` in the directory has each point at each passage; each `order-*.json` names one, and whether to end before
it, after it, or in its middle. A watch of the Kubernetes API is a point too: what it reports can come late, twice, or
not at all until the watch breaks.

Standard library alone, and nothing of gpushare: it is not part of any image that a user gets.
"""

import asyncio
import importlib.abc
import importlib.machinery
import inspect
import json
import os
import re
import signal
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any
from urllib.parse import urlsplit

DIRECTORY = "/run/gpushare/.faults"
"""The node's, in every pod of ours but the simulated driver's."""
CALLERS = 3
"""So many callers of ours, each of another module, tell where a write comes from."""
ANSWER_SECONDS = 0.05
"""So long after an answer was given to grpclib it has left the process."""
EXIT_CODE = 137
LATE_SECONDS = 5.0
BOOKMARK = b'"BOOKMARK"'
GONE = b'{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired","message":"too old"}}\n'
"""The answer by which the API server tells who watches to list again."""
RANDOM = r"(?<=\.)[a-z0-9_]{8}(\.gpushare-new)?$"
"""The end of a temporary file's name."""
PARTICULAR = re.compile(rf"GPU-[0-9a-f-]{{8,}}|[0-9a-f]{{8}}-[0-9a-f-]{{27}}|{RANDOM}|[0-9a-f]{{8,}}|\d+")
CHANGES = {
    "os.rename": "replace",
    "os.remove": "remove",
    "os.mkdir": "mkdir",
    "os.rmdir": "rmdir",
    "os.symlink": "symlink",
    "os.link": "link",
    "os.chown": "chown",
    "os.chmod": "chmod",
    "os.truncate": "truncate",
    "os.kill": "signal",
    "os.killpg": "signal",
    "subprocess.Popen": "program",
}
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
OTHERS = ("/proc/", "/dev/", "/run/gpushare-simulation/")
"""Below these no file is ours: the last stands for the driver."""


def role_of(words: list[str]) -> str:
    """The subcommand of `gpushare`; empty: another program."""
    for program, subcommand in pairwise(words):
        if program.rpartition("/")[2] == "gpushare":
            return subcommand
    return ""


def general(text: str) -> str:
    """The text without what differs from run to run: numbers, UUIDs, random names."""
    return PARTICULAR.sub("*", text)


def request_target(method: str, url: str) -> str:
    """`PATCH gpunodes/status` of a request to the Kubernetes API. Names of objects and namespaces are left out."""
    words = urlsplit(url).path.strip("/").split("/")
    words = words[2:] if words[:1] == ["api"] else words[3:]
    if words[:1] == ["namespaces"] and len(words) > 2:
        words = words[2:]
    return f"{method} {'/'.join([*words[:1], *words[2:]])}"


class Points:
    """What was passed, and which one is to be the last."""

    def __init__(self, directory: Path, role: str, end: Callable[[int], None] = os._exit) -> None:
        self._directory, self._role, self._end = directory, role, end
        self._passages: Counter[str] = Counter()
        self._last = ""
        self._own = threading.local()

    def passed(self, kind: str, target: str, middle: Callable[[], None] | None = None) -> bool:
        """Tells of the point; whether the process has to end once it is done. Does not return if it has to end at once.

        `middle`: does a part of the write.
        """
        if getattr(self._own, "inside", False):
            return False
        self._own.inside = True
        try:
            return self._passed_here(f"{self._role}: {kind} {general(target)}{_callers()}", middle)
        finally:
            self._own.inside = False

    def _passed_here(self, point: str, middle: Callable[[], None] | None) -> bool:
        self._tell(point=point, partly=middle is not None)
        when = self._ordered(point)
        if when == "after":
            return True
        if when == "middle" and middle:
            middle()
        if when:
            self.end(when)
        return False

    def reported(self, resource: str) -> str:
        """An event of a watch has come. What is to happen to it, once: late | twice | missed; or empty."""
        self._own.inside = True
        try:
            point = f"{self._role}: watch {resource}"
            self._tell(point=point, partly=False)
            when = self._ordered(point)
            if when:
                self._tell(done=point, when=when, died="")
            return when
        finally:
            self._own.inside = False

    def _ordered(self, point: str) -> str:
        """When to end, if an order names this point at this passage; else empty. An order is carried out once."""
        self._passages[point] += 1
        for path in self._directory.glob("order-*.json"):
            try:
                order = json.loads(path.read_text())
                if order["point"] == point and self._passages[point] > order["skip"]:
                    path.unlink()
                    self._last = point
                    return str(order["when"])
            except (OSError, ValueError):  # another process has just carried it out
                continue
        return ""

    def end(self, when: str) -> None:
        """The process that follows goes on."""
        self._own.inside = True
        self._tell(done=self._last, when=when, died=self._role)
        self._end(EXIT_CODE)

    def end_soon(self) -> None:
        """Ends the process after what is running now in C: at the next step of Python in this thread."""

        def step(frame: FrameType, event: str, argument: object) -> None:
            if frame.f_code.co_filename != __file__:
                self.end("after")

        sys.setprofile(step)

    def _tell(self, **fields: Any) -> None:
        with (self._directory / "hits.jsonl").open("a") as file:
            file.write(json.dumps(fields) + "\n")


def _callers() -> str:
    callers: list[str] = []
    frame = inspect.currentframe()
    while frame is not None and len(callers) < CALLERS:
        module = _module(frame.f_code)
        if module and not (callers and callers[-1].startswith(f"{module}.")):
            callers.append(f"{module}.{frame.f_code.co_name}")
        frame = frame.f_back
    return "".join(f" < {caller}" for caller in callers)


def _module(code: CodeType) -> str:
    """`agent.tick` of code in site-packages/gpushare/agent/tick.py; empty: not ours."""
    _, package, path = code.co_filename.rpartition("/site-packages/gpushare/")
    return path.removesuffix(".py").replace("/", ".") if package else ""


def audit(points: Points) -> Callable[[str, tuple[Any, ...]], None]:
    """A hook for sys.addaudithook: files, directories, links, signals, programs."""

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if not (isinstance(path, str | bytes | os.PathLike) and isinstance(flags, int) and flags & WRITES):
                return
            kind, target, middle = "open", os.fsdecode(path), None
        elif event in CHANGES:
            kind, middle = CHANGES[event], None
            target = _target(event, arguments)
            if event == "os.rename" and Path(os.fsdecode(arguments[0])).is_file():
                middle = _half(os.fsdecode(arguments[0]))
        else:
            return
        if not target.startswith(OTHERS) and points.passed(kind, target, middle):
            points.end_soon()

    return hook


def _target(event: str, arguments: tuple[Any, ...]) -> str:
    if event in ("os.rename", "os.symlink", "os.link"):
        return _name(arguments[1])
    if event.startswith("os.kill"):
        return signal.Signals(arguments[1]).name if arguments[1] else "0"
    return _name(arguments[0])


def _name(path: object) -> str:
    return os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else "a descriptor"


def _half(path: str) -> Callable[[], None]:
    """What a crash within the writing of a new file leaves: half of it, under its temporary name."""

    def cut() -> None:
        os.truncate(path, Path(path).stat().st_size // 2)

    return cut


def instrument_sockets(points: Points) -> None:
    """What is said to the other side of a socket file."""
    for name in ("send", "sendall"):
        setattr(socket.socket, name, _sending(points, getattr(socket.socket, name)))


def _sending(points: Points, original: Callable[..., Any]) -> Callable[..., Any]:
    def send(self: socket.socket, data: Any, *flags: int) -> Any:
        if self.family != socket.AF_UNIX or not (target := _peer(self)) or target.startswith(OTHERS):
            return original(self, data, *flags)
        after = points.passed("say", target, lambda: original(self, memoryview(data)[: len(data) // 2]))
        result = original(self, data, *flags)
        if after:
            points.end("after")
        return result

    return send


def _peer(connection: socket.socket) -> str:
    """The socket file that this side connected to or listens on; empty: it has none."""
    try:
        name = connection.getpeername() or connection.getsockname()
    except OSError:
        return ""
    return name if isinstance(name, str) else ""


def instrument_signals(points: Points) -> None:
    original = signal.pidfd_send_signal

    def send(pidfd: int, number: int, *rest: Any) -> None:
        after = points.passed("signal", signal.Signals(number).name if number else "0")
        original(pidfd, number, *rest)
        if after:
            points.end("after")

    signal.pidfd_send_signal = send


def instrument_http(module: Any, points: Points) -> None:
    """`aiohttp`: every request that changes something, and every watch, in all sessions."""
    original, watches = module.ClientSession.__init__, Watches(module.StreamReader, points)

    async def begins(session: Any, context: Any, request: Any) -> None:
        context.after = request.method not in ("GET", "HEAD") and points.passed(
            "request", request_target(request.method, str(request.url))
        )

    async def ends(session: Any, context: Any, request: Any) -> None:
        if context.after:
            points.end("after")
        if request.url.query.get("watch") == "true":
            watches.begin(request.response.content, request_target("", str(request.url)).strip())

    def initialized(self: Any, *arguments: Any, **options: Any) -> None:
        tracing = module.TraceConfig()
        tracing.on_request_start.append(begins)
        tracing.on_request_end.append(ends)
        options["trace_configs"] = [*(options.get("trace_configs") or ()), tracing]
        original(self, *arguments, **options)

    module.ClientSession.__init__ = initialized


class Watches:
    """Stands between aiohttp's parser and whoever reads a watch."""

    def __init__(self, readers: Any, points: Points, late_seconds: float = LATE_SECONDS) -> None:
        """`readers`: aiohttp's StreamReader."""
        self._points, self._late_seconds = points, late_seconds
        self._watches: dict[int, Watch] = {}
        self._feed, feed_eof = readers.feed_data, readers.feed_eof

        def feed_data(reader: Any, data: bytes, *rest: Any) -> Any:
            watch = self._watches.get(id(reader))
            return watch.feed(data) if watch else self._feed(reader, data, *rest)

        def end(reader: Any) -> None:
            self._watches.pop(id(reader), None)
            feed_eof(reader)

        readers.feed_data, readers.feed_eof = feed_data, end

    def begin(self, reader: Any, resource: str) -> None:
        self._watches[id(reader)] = Watch(self._points, reader, resource, self._feed, self._late_seconds)


class Watch:
    """The events of one watch. They keep their order: what is late holds up what follows."""

    def __init__(
        self, points: Points, reader: Any, resource: str, feed: Callable[[Any, bytes], Any], late_seconds: float
    ) -> None:
        self._points, self._reader, self._resource, self._feed = points, reader, resource, feed
        self._rest, self._late_seconds = b"", late_seconds
        self._late_until, self._missing = 0.0, False

    def feed(self, data: bytes) -> bool:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._event(line + b"\n")
        return False

    def _event(self, line: bytes) -> None:
        loop = asyncio.get_running_loop()
        how = "" if BOOKMARK in line[:40] else self._points.reported(self._resource)
        if how == "late":
            self._late_until = loop.time() + self._late_seconds
        if how == "missed":
            self._missing = True
            loop.call_later(self._late_seconds, self._give, GONE)
        if self._missing:
            return
        if loop.time() < self._late_until:
            self._late_until += 0.0001
            loop.call_at(self._late_until, self._give, line)
            return
        self._give(line * (2 if how == "twice" else 1))

    def _give(self, line: bytes) -> None:
        with suppress(AssertionError):  # the watch has ended meanwhile
            self._feed(self._reader, line)


def instrument_grpc(module: Any, points: Points) -> None:
    """`grpclib.server`: the answers to single questions."""

    class Stream(module.Stream):
        async def send_message(self, message: Any) -> None:
            streaming = self._cardinality.server_streaming
            if not streaming and points.passed("answer", self._method_name.rpartition("/")[2]):
                asyncio.get_running_loop().call_later(ANSWER_SECONDS, points.end, "after")
            await super().send_message(message)

    module.Stream = Stream


class AfterImport(importlib.abc.MetaPathFinder):
    """Instruments a library once a process has imported it: most of them never do."""

    def __init__(self, wanted: dict[str, Callable[[ModuleType], None]]) -> None:
        self._wanted = wanted

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        instrument = self._wanted.get(name)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target) if instrument else None
        if spec and spec.loader and instrument:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                instrument(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def begin() -> None:
    """Does nothing where there is no campaign."""
    role, directory = role_of(sys.orig_argv), Path(DIRECTORY)
    if not (role and os.access(directory, os.W_OK)):
        return
    points = Points(directory, role)
    wanted = {"aiohttp": instrument_http, "grpclib.server": instrument_grpc}
    sys.meta_path.insert(
        0, AfterImport({name: lambda module, change=change: change(module, points) for name, change in wanted.items()})
    )
    instrument_sockets(points)
    instrument_signals(points)
    sys.addaudithook(audit(points))


begin()
