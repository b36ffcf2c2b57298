"""A program that stands in for kubectl: its `proxy` answers from a list, and it notes down what it is asked.

    python stand_in.py FOLDER ARGUMENT …

FOLDER has `answers.json`, {"METHOD /path?query": [status, body]}, where a text is sent as it is, and anything else as
JSON; "" has the answer to all other paths. Each run of kubectl and each question to the proxy is a line in `asked`, in
both without the limit of a list's page.
"""

import json
import os
import re
import shlex
import signal
import socketserver
import sys
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

CONTEXT = {"contexts": [{"context": {"namespace": "ml"}}]}


EMPTY = {"items": []}


def make(folder: Path, answers: Mapping[str, tuple[int, Any]] | None = None, fails: str = "") -> str:
    """The path of a `kubectl` in the folder. `fails`: what each run says, to end with 1."""
    (folder / "answers.json").write_text(json.dumps({"": (200, EMPTY)} | dict(answers or {})))
    (folder / "asked").touch()
    program = folder / "kubectl"
    run = f'exec {sys.executable} {__file__} {folder} "$@"'
    if fails:
        run = f"echo {shlex.quote(fails)} >&2; exit 1"
    program.write_text(f"#!/bin/sh\n{run}\n")
    program.chmod(0o755)
    return str(program)


def on_path(program: str) -> dict[str, str]:
    return {"PATH": f"{Path(program).parent}:{os.environ['PATH']}"}


def asked(folder: Path) -> list[str]:
    return (folder / "asked").read_text().splitlines()


class _Handler(BaseHTTPRequestHandler):
    folder = Path()

    def answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length).decode()
        path = re.sub(r"[?&]limit=\d+$", "", self.path)
        _note(self.folder, f"{self.command} {path} {self.headers.get('Content-Type', '')} {body}".rstrip())
        answers = json.loads((self.folder / "answers.json").read_text())
        status, content = answers.get(f"{self.command} {path}") or answers[""]
        text = content if isinstance(content, str) else json.dumps(content)
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    do_GET = do_POST = do_PATCH = answer

    def address_string(self) -> str:
        return "a Unix socket has no address"

    def log_message(self, format: str, *args: Any) -> None:
        pass


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    request_queue_size = 128  # kubectl's own is at least as long: whoever finds it full is not served
    daemon_threads = True


def _note(folder: Path, text: str) -> None:
    with (folder / "asked").open("a") as file:
        file.write(f"{text}\n")


def main(folder: Path, arguments: list[str]) -> None:
    _note(folder, " ".join(arguments))
    if arguments[0] != "proxy":
        print(json.dumps(CONTEXT))
        return
    (socket,) = (argument.partition("=")[2] for argument in arguments if argument.startswith("--unix-socket="))
    _Handler.folder = folder
    signal.signal(signal.SIGTERM, lambda *_: (_note(folder, "ended"), os._exit(0)))
    with _Server(socket, _Handler) as server:
        print(f"Starting to serve on {socket}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
