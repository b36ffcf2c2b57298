"""Serves the page to the browser of this machine's user: on 127.0.0.1 alone, below a path that nobody can guess."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from gpushare.kubectl.page.serving.pages import Pages

ADDRESS = "127.0.0.1"
MOST_CONNECTIONS = 64
IDLE_SECONDS = 30


@contextmanager
def serving(pages: Pages, port: int) -> Iterator[int]:
    """Gives the port; 0: any that is free. Raises OSError where it is taken."""
    server = _LocalServer((ADDRESS, port), _Handler)
    server.pages = pages
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.2}, daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


class _LocalServer(ThreadingHTTPServer):
    """A connection beyond MOST_CONNECTIONS is closed at once."""

    daemon_threads = True
    allow_reuse_address = False
    pages: Pages

    def __init__(self, *arguments: Any) -> None:
        self._room = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._open: set[socket.socket] = set()
        super().__init__(*arguments)  # which closes at once where the port is taken

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread can be started
            self._room.release()
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._open.discard(request)
            self._room.release()

    def server_close(self) -> None:
        """Ends the connections too, which browsers keep."""
        super().server_close()
        for connection in list(self._open):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away is no fault of ours, and a traceback would stand in the user's terminal."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = IDLE_SECONDS
    server: _LocalServer

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self.close_connection = True  # its body is not read
        self._answer()

    do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_POST

    def _answer(self) -> None:
        answer = self.server.pages.answer(self.command, self.path, self.headers.get("Host", ""))
        self.send_response_only(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Type", answer.kind)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def log_message(self, *_: Any) -> None:
        """The user's terminal is no access log."""

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
