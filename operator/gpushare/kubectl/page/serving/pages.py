"""What the browser gets: the page's files, what has changed, and one pod in full. Nothing here changes anything.

Guarantees: only GET and HEAD are answered, only under the hosts that the page is served as (a foreign page whose name
leads to this machine gets nothing: DNS rebinding), and only below the secret part of the path, where there is one.
Every answer forbids the browser to load anything from elsewhere, to be framed, and to keep it.
"""

import json
import re
import secrets
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qsl

from gpushare.kube.resources import KubeError
from gpushare.kubectl.failures import UnreachableError
from gpushare.kubectl.page.content.feed import Feed

TYPES = {"css": "text/css", "html": "text/html", "js": "text/javascript", "svg": "image/svg+xml"}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
}
LONGEST_TARGET = 8192
LONGEST_NAME = 253
MOST_FIELDS = 8
_PORT = re.compile(r":[0-9]{1,5}\Z")


@dataclass(frozen=True, slots=True)
class PageAnswer:
    """`body` is of UTF-8 where it is text."""

    status: HTTPStatus
    kind: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=lambda: HEADERS)


class Pages:
    """Safe to use from several threads."""

    def __init__(
        self,
        feed: Feed,
        looking: Callable[[list[str]], None],
        pod: Callable[[str, str], dict[str, Any] | None],
        about: Mapping[str, str],
        hosts: Collection[str],
        secret: str = "",
        once: str = "",
    ) -> None:
        """`looking`: is told which nodes the browser shows. `pod`: (namespace, name) to all about it, None where there
        is none; raises KubeError and UnreachableError. `about`: what the page says of itself. `hosts`: names, as in the
        header Host but without a port. `secret`: the first part of each path. `once`: a path that
        leads to the page for whoever comes first: a browser's command line, where others may read it, needs no more.
        """
        self._feed, self._looking, self._pod = feed, looking, pod
        self._about = dict(about)
        self._hosts = frozenset(host.lower() for host in hosts)
        self._root = f"/{secret}/" if secret else "/"
        self._once = [f"/{once}"] if once else []
        folder = files("gpushare.kubectl.page").joinpath("static")
        self._files = {
            file.name: file.read_bytes() for file in folder.iterdir() if file.name.rpartition(".")[2] in TYPES
        }

    def answer(self, method: str, target: str, host: str) -> PageAnswer:
        """`target`: path and query, as in the request's first line. `host`: of the header."""
        if method not in ("GET", "HEAD"):
            return _text(HTTPStatus.METHOD_NOT_ALLOWED, "this page can only be read", {"Allow": "GET, HEAD"})
        if _PORT.sub("", host.lower()) not in self._hosts:
            return _text(HTTPStatus.MISDIRECTED_REQUEST, "this page is not served under that name")
        if len(target) > LONGEST_TARGET:
            return _text(HTTPStatus.REQUEST_URI_TOO_LONG, "the address is too long")
        path, _, question = target.partition("?")
        if method == "GET" and self._once and secrets.compare_digest(path.encode(), self._once[0].encode()):
            with suppress(IndexError):  # another request was first
                self._once.pop()
                return _text(HTTPStatus.SEE_OTHER, "the page is there", {"Location": self._root})
        begins, name = path[: len(self._root)], path[len(self._root) :]
        if not secrets.compare_digest(begins.encode(), self._root.encode()):
            return _text(HTTPStatus.NOT_FOUND, "there is nothing here: use the address that the program printed")
        try:
            query = dict(parse_qsl(question, max_num_fields=MOST_FIELDS))
        except ValueError:
            return _text(HTTPStatus.BAD_REQUEST, f"a query has {MOST_FIELDS} fields at most")
        if name == "changes":
            return self._changes(query)
        if name == "pod":
            return self._one_pod(query)
        if name == "about":
            return _json(HTTPStatus.OK, self._about)
        content = self._files.get(name or "index.html")
        if content is None:
            return _text(HTTPStatus.NOT_FOUND, "there is no such page")
        kind = TYPES[(name or "index.html").rpartition(".")[2]]
        return PageAnswer(HTTPStatus.OK, f"{kind}; charset=utf-8", content)

    def _changes(self, query: Mapping[str, str]) -> PageAnswer:
        since = query.get("since", "0")
        if not (since.isascii() and since.isdigit() and len(since) <= 15):
            return _text(HTTPStatus.BAD_REQUEST, "since must be the revision of an answer before")
        self._looking([node for node in query.get("nodes", "").split(",") if node])
        body = self._feed.changes(query.get("epoch", ""), int(since))
        return PageAnswer(HTTPStatus.OK, "application/json", body.encode())

    def _one_pod(self, query: Mapping[str, str]) -> PageAnswer:
        namespace, name = query.get("namespace", ""), query.get("name", "")
        if not all(part and len(part) <= LONGEST_NAME and part not in (".", "..") for part in (namespace, name)):
            return _text(HTTPStatus.BAD_REQUEST, "namespace and name of a pod are needed")
        try:
            detail = self._pod(namespace, name)
        except (KubeError, UnreachableError) as error:
            return _json(HTTPStatus.BAD_GATEWAY, {"error": str(error)})
        if detail is None:
            return _json(HTTPStatus.NOT_FOUND, {"error": f"there is no pod {namespace}/{name} any more"})
        return _json(HTTPStatus.OK, detail)


def _json(status: HTTPStatus, value: object) -> PageAnswer:
    return PageAnswer(status, "application/json", json.dumps(value).encode())


def _text(status: HTTPStatus, text: str, more: Mapping[str, str] | None = None) -> PageAnswer:
    return PageAnswer(status, "text/plain; charset=utf-8", f"{text}\n".encode(), HEADERS | dict(more or {}))
