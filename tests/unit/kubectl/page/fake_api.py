"""An API server of a few lines, on loopback: lists, watches, and what a test wants it to say instead."""

import json
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from gpushare.kubectl.api import ApiReader


class FakeApi(ThreadingHTTPServer):
    """`answers`: by path, a body to GET or (status, body). `events`: what watches say; None ends a watch. `asked`: the
    paths with their queries."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _FakeHandler)
        self.answers: dict[str, Any] = {}
        self.events: queue.Queue[dict[str, Any] | bytes | None] = queue.Queue()
        self.asked: list[tuple[str, dict[str, str]]] = []

    def reader(self) -> ApiReader:
        return ApiReader(lambda seconds: HTTPConnection("127.0.0.1", self.server_port, timeout=min(seconds, 5.0)), dict)


class _FakeHandler(BaseHTTPRequestHandler):
    server: FakeApi

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        self.server.asked.append((parts.path, query))
        if "watch" in query:
            self.send_response(200)
            self.end_headers()
            while (event := self.server.events.get()) is not None:
                self.wfile.write((event if isinstance(event, bytes) else json.dumps(event).encode()) + b"\n")
            return
        answer = self.server.answers.get(parts.path, (404, status("NotFound", "not here")))
        if callable(answer):
            answer = answer(query)
        code, body = answer if isinstance(answer, tuple) else (200, answer)
        self.send_response(code)
        self.end_headers()
        self.wfile.write(body if isinstance(body, bytes) else json.dumps(body).encode())

    def log_message(self, *_: Any) -> None:
        """A test's output is no access log."""


def status(reason: str, message: str) -> dict[str, Any]:
    return {"kind": "Status", "reason": reason, "message": message}


@contextmanager
def fake_api() -> Iterator[FakeApi]:
    server = FakeApi()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.events.put(None)
        server.shutdown()
        server.server_close()
