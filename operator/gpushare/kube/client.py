"""Requests to the API server as plain dicts, each with a time limit.

There are no typed models: what we write is server-side apply, and what we read goes into our own models.
"""

import asyncio
import json
import socket
from asyncio import sslproto
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from http import HTTPStatus
from typing import TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp

from gpushare.kube.access import Access, find_access
from gpushare.kube.list_page import read_page
from gpushare.kube.resources import (
    CLAIM_TEMPLATES,
    CORE_EVENTS,
    DAEMON_SETS,
    DEVICE_CLASSES,
    EVENTS,
    GPU_NODES,
    GPU_SHARES,
    MUTATING_WEBHOOKS,
    NAMESPACES,
    NODES,
    PODS,
    POLICIES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    SECRETS,
    VALIDATING_WEBHOOKS,
    KubeError,
    Object,
    Resource,
)

__all__ = (  # with the names of resources, for those who connect anyway
    "CLAIM_TEMPLATES",
    "CORE_EVENTS",
    "DAEMON_SETS",
    "DEVICE_CLASSES",
    "EVENTS",
    "GPU_NODES",
    "GPU_SHARES",
    "MUTATING_WEBHOOKS",
    "NAMESPACES",
    "NODES",
    "PODS",
    "POLICIES",
    "RESOURCE_CLAIMS",
    "RESOURCE_SLICES",
    "SECRETS",
    "VALIDATING_WEBHOOKS",
    "KubeError",
    "Object",
    "Resource",
    "API_ERRORS",
    "CONNECTION_ERRORS",
    "MAX_OBJECT_BYTES",
    "PAGE_BYTES",
    "PAGE_ITEMS",
    "READ_BYTES",
    "REQUEST_SECONDS",
    "WATCH_SECONDS",
    "Kube",
    "TooLargeError",
    "connect",
    "connect_to",
    "has_proxy",
)

REQUEST_SECONDS = 15.0
MAX_CONNECTIONS = 100
"""For requests. More of those wait for one that is free."""
RETRIES = 10
"""Of a request that is answered with Retry-After, as in client-go; all waits together take REQUEST_SECONDS at most."""
MAX_RETRY_DIGITS = 4
"""A wait of days is no API server's."""
WATCH_SECONDS = 300
"""Length of one watch request; the server ends it and we go on from the last resource version."""
SILENT_SECONDS = 150.0
"""A watch that says nothing for so long is dead, whatever its connection is: kube-apiserver 1.37 was seen to send an
idle one a bookmark after 120 s, and each 61 s from then on."""
KEEPALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""A connection whose other side is gone without a word breaks after 30 s, much as those of client-go do."""
PAGE_ITEMS = 500
PAGE_BYTES = 1024 * 1024
"""Of a page that holds more, fewer items are asked for."""
MAX_OBJECT_BYTES = 32 * 1024 * 1024
"""Of one object as JSON. A request to the API server may have 3 MiB, and etcd stores 1.5 MiB by default; as JSON, with
the defaults filled in, that was measured to be up to four times as much."""
READ_BYTES = 64 * 1024
"""What is read ahead of one answer. Lines are put together here, so no line has to fit into it."""
TLS_BYTES = 32 * 1024
"""What asyncio keeps ready for each connection, in place of 256 KiB; a record of TLS has 16 KiB at most."""

Kept = TypeVar("Kept")

_PATCH_TYPES = {"merge": "application/merge-patch+json", "json": "application/json-patch+json"}


CONNECTION_ERRORS = (aiohttp.ClientError, TimeoutError, OSError)
"""The API server did not answer."""
API_ERRORS = (KubeError, *CONNECTION_ERRORS)
"""What a request raises: a refusal, a broken connection, a time limit. Retry; nothing else is wrong with us."""


class TooLargeError(ValueError):
    """An answer, or a part of it that is read as a whole, is larger than anything that an API server should send."""


async def connect(user_agent: str) -> "Kube":
    """In a pod its service account, elsewhere KUBECONFIG or ~/.kube/config. AccessError says what is missing."""
    return connect_to(await find_access(), user_agent)


def connect_to(access: Access, user_agent: str, silent_seconds: float = SILENT_SECONDS) -> "Kube":
    """To be called in an event loop, the only one that uses it. `silent_seconds`: how long a watch may say nothing."""
    sslproto.SSLProtocol.max_size = min(sslproto.SSLProtocol.max_size, TLS_BYTES)
    proxied = has_proxy(access.server)
    requests, watches = (
        aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=limit, ssl=access.tls or True, socket_factory=_kept_alive),
            headers={"User-Agent": user_agent},
            read_bufsize=READ_BYTES,
            trust_env=proxied,
        )
        for limit in (MAX_CONNECTIONS, 0)
    )
    return Kube(access, requests, watches, silent_seconds)


def _kept_alive(address: aiohttp.AddrInfoType) -> socket.socket:
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        if (option := getattr(socket, name, None)) is not None:  # macOS, where the kubectl plugin runs too, lacks one
            made.setsockopt(socket.IPPROTO_TCP, option, value)
    return made


class Kube:
    """Two connection pools to one API server. Safe to use from many tasks of one event loop.

    Each watch keeps a connection, and there may be hundreds: among the requests they would keep all of those waiting.
    """

    def __init__(
        self, access: Access, requests: aiohttp.ClientSession, watches: aiohttp.ClientSession, silent_seconds: float
    ) -> None:
        self._access = access
        self._requests = requests
        self._watches = watches
        self._silent_seconds = silent_seconds
        self._may_write: Callable[[], None] = _anything

    def guard_writes(self, check: Callable[[], None]) -> None:
        """From now on `check` is called before each request that may change something; what it raises ends that."""
        self._may_write = check

    async def close(self) -> None:
        await self._requests.close()
        await self._watches.close()

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Object:
        return await self._json("GET", resource.path(namespace, name))

    async def find(self, resource: Resource, name: str, namespace: str | None = None) -> Object | None:
        """The object, or None where there is none."""
        try:
            return await self.get(resource, name, namespace)
        except KubeError as error:
            if error.not_found:
                return None
            raise

    async def list_all(self, resource: Resource, namespace: str | None = None, **selectors: str) -> Object:
        """The whole list object. `selectors`: labelSelector, fieldSelector."""
        return await self._json("GET", resource.path(namespace), query=selectors)

    async def pages(
        self, resource: Resource, keep: Callable[[Object], Kept | None], namespace: str | None = None, **selectors: str
    ) -> AsyncIterator[tuple[list[Kept], str]]:
        """The list in pieces: (what `keep` makes of the objects, without None; the version of the whole list). Of a
        large list no more than PAGE_BYTES of text are in memory at a time, and of its objects one as a whole.
        KubeError.gone: it took too long, list again. TooLargeError: an object is.

        A small list is asked for without a limit: API servers before 1.34 answer one with a limit from etcd, where they
        read every object of the kind for it, whatever the selectors say.
        """
        limit, token = 0, ""
        while True:
            query = {**selectors, **({"limit": str(limit)} if limit else {}), **({"continue": token} if token else {})}
            most = MAX_OBJECT_BYTES if limit == 1 else PAGE_BYTES
            answer = await self._request("GET", resource.path(namespace), query, None, None, REQUEST_SECONDS)
            body = await _read(answer, most)
            if body is None:
                if limit == 1:
                    raise TooLargeError(f"an object of {resource.plural} has more than {most} bytes")
                limit = max(1, limit // 8) if limit else PAGE_ITEMS
                continue
            count, size = 0, len(body)
            kept: list[Kept] = []

            def take(obj: Object) -> None:
                nonlocal count
                count += 1
                if (one := keep(obj)) is not None:
                    kept.append(one)  # noqa: B023 - called in this turn alone

            page = _page(body, take)
            del body
            token = page["metadata"].get("continue") or ""
            limit = max(1, min(PAGE_ITEMS, count * PAGE_BYTES * 3 // (4 * size)))  # three quarters: items differ
            yield kept, str(page["metadata"]["resourceVersion"])
            if not token:
                return

    async def create(
        self, resource: Resource, body: Object, namespace: str | None = None, *, dry_run: bool = False
    ) -> Object:
        """`dry_run`: everything is judged, nothing is stored."""
        return await self._json("POST", resource.path(namespace), query=_dry(dry_run), body=body)

    async def apply(
        self,
        resource: Resource,
        name: str,
        body: Object,
        *,
        manager: str,
        namespace: str | None = None,
        subresource: str | None = None,
    ) -> Object:
        """Server-side apply, taking over fields that others hold: what we name is ours to decide."""
        query = {"fieldManager": manager, "force": "true"}
        path = resource.path(namespace, name, subresource)
        return await self._json("PATCH", path, query=query, body=body, content="application/apply-patch+yaml")

    async def patch(
        self,
        resource: Resource,
        name: str,
        body: Object | list[Object],
        *,
        manager: str,
        kind: str = "merge",
        namespace: str | None = None,
        subresource: str | None = None,
        dry_run: bool = False,
    ) -> Object:
        """`kind`: merge (RFC 7386) or json (RFC 6902). `dry_run`: everything is judged, nothing is stored."""
        path = resource.path(namespace, name, subresource)
        query = {"fieldManager": manager, **_dry(dry_run)}
        return await self._json("PATCH", path, query=query, body=body, content=_PATCH_TYPES[kind])

    async def delete(self, resource: Resource, name: str, namespace: str | None = None, uid: str = "") -> None:
        """Idempotent: an object that is gone is no error, nor is one of another `uid`, where that is given."""
        options: Object = {"propagationPolicy": "Background"}
        if uid:
            options["preconditions"] = {"uid": uid}
        try:
            await self._json("DELETE", resource.path(namespace, name), body=options)
        except KubeError as error:
            if not (error.not_found or (uid and error.status == HTTPStatus.CONFLICT)):
                raise

    async def server_version(self) -> str:
        """Such as v1.37.0."""
        return str((await self._json("GET", "/version")).get("gitVersion", ""))

    async def served(self, resource: Resource) -> bool:
        """Whether the API server knows the kind in this version."""
        try:
            answer = await self._json("GET", f"/apis/{resource.group}/{resource.version}")
        except KubeError as error:
            if error.not_found:
                return False
            raise
        return any(item.get("name") == resource.plural for item in answer.get("resources") or [])

    async def proxied(self, namespace: str, pod: str, port: int, path: str) -> str:
        """What a pod answers to GET, through the API server: needs the right to get pods/proxy."""
        target = PODS.path(namespace, f"{pod}:{port}", "proxy")
        answer = await self._request("GET", f"{target}/{path}", {}, None, None, REQUEST_SECONDS, accept="text/plain")
        return (await answer.read()).decode()

    async def watch(
        self, resource: Resource, namespace: str | None, version: str, selectors: dict[str, str]
    ) -> AsyncIterator[Object]:
        """Watch events from `version` on, until the server ends the request. KubeError.gone: list again.

        TooLargeError: an event is. TimeoutError: it says nothing any more.
        """
        query = {
            **selectors,
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        limits = aiohttp.ClientTimeout(total=WATCH_SECONDS + 15, sock_read=self._silent_seconds)
        answer = await self._request("GET", resource.path(namespace), query, None, None, limits, session=self._watches)
        try:
            async for line in _lines(answer):
                event = _object(line, "type", "object")
                if event["type"] == "ERROR":
                    status = event["object"]
                    raise KubeError(status.get("code", 500), status.get("reason", ""), status.get("message", ""))
                yield event
        finally:
            answer.close()

    async def _json(
        self,
        method: str,
        path: str,
        *,
        query: dict[str, str] | None = None,
        body: Object | list[Object] | None = None,
        content: str | None = None,
    ) -> Object:
        answer = await self._request(method, path, query or {}, body, content, REQUEST_SECONDS)
        return _object(await answer.read())

    async def _request(
        self,
        method: str,
        path: str,
        query: dict[str, str],
        body: Object | list[Object] | None,
        content: str | None,
        limits: float | aiohttp.ClientTimeout,
        accept: str = "application/json",
        session: aiohttp.ClientSession | None = None,
    ) -> aiohttp.ClientResponse:
        """Sent again after the time that a busy server names, within RETRIES and REQUEST_SECONDS."""
        session = session or self._requests
        timeout = limits if isinstance(limits, aiohttp.ClientTimeout) else aiohttp.ClientTimeout(total=limits)
        data = None if body is None else json.dumps(body).encode()
        retries, waited = 0, 0.0
        while True:
            if method != "GET":
                self._may_write()
            headers = {"Accept": accept, "Content-Type": content or "application/json"}
            if authorization := await self._access.authorization():
                headers["Authorization"] = authorization
            answer = await session.request(
                method,
                self._access.server + path,
                params=query,
                data=data,
                headers=headers,
                timeout=timeout,
                server_hostname=self._access.tls_server_name or None,
                proxy=self._access.proxy or None,
            )
            if answer.status < HTTPStatus.BAD_REQUEST:
                return answer
            text, pause = await answer.read(), _retry_after(answer.status, answer.headers.get("Retry-After", ""))
            retries, waited = retries + 1, waited + pause
            if not pause or retries > RETRIES or waited > REQUEST_SECONDS:
                raise _error(answer.status, text, pause)
            await asyncio.sleep(pause)


async def _read(answer: aiohttp.ClientResponse, most: int) -> bytes | None:
    """The whole answer; None: it has more than `most` bytes, and the rest is not read."""
    body = bytearray()
    async for chunk in answer.content.iter_any():
        body += chunk
        if len(body) > most:
            answer.close()
            return None
    return bytes(body)


async def _lines(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Each line without its end, as soon as it is there; what follows the last end is left out."""
    rest = bytearray()
    async for chunk in answer.content.iter_any():
        *lines, last = chunk.split(b"\n")
        for line in lines:
            rest += line
            yield bytes(rest)
            rest.clear()
        rest += last
        if len(rest) > MAX_OBJECT_BYTES:
            raise TooLargeError(f"a watch event has more than {MAX_OBJECT_BYTES} bytes")


def has_proxy(url: str) -> bool:
    """Whether the environment names a proxy for it.

    aiohttp looks there only then: it does so anew for each request and reads ~/.netrc, too, which costs two threads and
    an eighth of the operator's CPU time.
    """
    parts = urlsplit(url)
    return parts.scheme in getproxies() and not proxy_bypass(parts.hostname or "")


def _anything() -> None:
    """Of a part without a Lease: every write may be sent."""


def _dry(dry_run: bool) -> dict[str, str]:
    return {"dryRun": "All"} if dry_run else {}


def _object(body: bytes, *fields: str) -> Object:
    """The JSON object with at least `fields`; KubeError: something between us and the API server sent another thing."""
    with suppress(ValueError):
        answer = json.loads(body)
        if isinstance(answer, dict) and all(field in answer for field in fields):
            return answer
    raise _foreign(body)


def _page(body: bytes, take: Callable[[Object], None]) -> Object:
    """`read_page`, of what has metadata; KubeError as of `_object`."""
    try:
        page = read_page(body, take)
    except ValueError as error:
        raise _foreign(body) from error
    if "metadata" not in page:
        raise _foreign(body)
    return page


def _foreign(body: bytes) -> KubeError:
    text = body[:200].decode(errors="replace")
    return KubeError(HTTPStatus.BAD_GATEWAY, "", f"the answer is none of an API server: {text!r}")


def _retry_after(status: int, header: str) -> float:
    """Seconds; 0: it does not say when to ask again. As client-go, which takes whole seconds of a 429 or 5xx alone."""
    busy = status == HTTPStatus.TOO_MANY_REQUESTS or status >= HTTPStatus.INTERNAL_SERVER_ERROR
    return float(header) if busy and header.isdecimal() and len(header) <= MAX_RETRY_DIGITS else 0.0


def _error(status: int, body: bytes, retry_after: float) -> KubeError:
    """Something between us and the API server may answer with anything, so only a Status object is read."""
    try:
        answer = json.loads(body)
        return KubeError(status, str(answer.get("reason", "")), str(answer.get("message", "")), retry_after)
    except (ValueError, AttributeError):
        return KubeError(status, "", body[:200].decode(errors="replace"), retry_after)
