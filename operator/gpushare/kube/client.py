"""Requests to the API server as plain dicts, each with a time limit.

There are no typed models: what we write is server-side apply, and what we read goes into our own models.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import TypeVar

import aiohttp
from kubernetes.aio.client.configuration import Configuration

from gpushare.kube.answers import read_list, read_object
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
from gpushare.kube.session import AccessError, ApiSession, log_in

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
    "AccessError",
    "CONNECTION_ERRORS",
    "MAX_OBJECT_BYTES",
    "PAGE_BYTES",
    "PAGE_ITEMS",
    "REQUEST_SECONDS",
    "WATCH_SECONDS",
    "Kube",
    "TooLargeError",
    "connect",
)

REQUEST_SECONDS = 15.0
RETRIES = 10
"""Retries of a request that is answered with Retry-After, as in client-go; all waits together take REQUEST_SECONDS at
most."""
WATCH_SECONDS = 300
"""Length of one watch request; the server ends it and we go on from the last resource version."""
SILENT_SECONDS = 150.0
"""A watch that says nothing for so long is dead, whatever its connection is: kube-apiserver 1.37 was seen to send an
idle one a bookmark after 120 s, and each 61 s from then on."""
PAGE_ITEMS = 500
PAGE_BYTES = 1024 * 1024
"""A page that holds more is asked for again with fewer items."""
MAX_OBJECT_BYTES = 32 * 1024 * 1024
"""The most that one object has as JSON. A request to the API server may have 3 MiB, and etcd stores 1.5 MiB by
default; as JSON, with the defaults filled in, that was measured to be up to four times as much."""

Kept = TypeVar("Kept")

_JSON, _APPLY = "application/json", "application/apply-patch+yaml"
_PATCH_TYPES = {"merge": "application/merge-patch+json", "json": "application/json-patch+json"}
_LIMITS = aiohttp.ClientTimeout(total=REQUEST_SECONDS)


CONNECTION_ERRORS = (aiohttp.ClientError, TimeoutError, OSError)
"""The API server did not answer."""
API_ERRORS = (KubeError, *CONNECTION_ERRORS)
"""What a request raises: a refusal, a broken connection, a time limit. Retry; nothing else is wrong with us."""


class TooLargeError(ValueError):
    """An answer, or a part of it that is read as a whole, is larger than anything that an API server should send."""


async def connect(user_agent: str, kubeconfig: Path | None = None) -> "Kube":
    """A client: in a pod as its service account, elsewhere by `kubeconfig`, KUBECONFIG or ~/.kube/config.

    To be called in the event loop that uses it. AccessError says what is missing.
    """
    configuration, refresh = Configuration(), partial(log_in, kubeconfig=kubeconfig)
    await refresh(configuration)
    return Kube(ApiSession(configuration, user_agent, refresh))


class Kube:
    """Reads and writes of one API server. Safe to use from many tasks of one event loop."""

    def __init__(self, session: ApiSession, silent_seconds: float = SILENT_SECONDS) -> None:
        """`silent_seconds`: how long a watch may say nothing."""
        self._session = session
        self._silent_seconds = silent_seconds
        self._may_write: Callable[[], None] = _anything

    def guard_writes(self, check: Callable[[], None]) -> None:
        """Has `check` called before each request that may change something; what it raises ends that request."""
        self._may_write = check

    async def close(self) -> None:
        await self._session.close()

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
            answer = await self._request("GET", resource.path(namespace), query)
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
                if (part := keep(obj)) is not None:
                    kept.append(part)  # noqa: B023 - called in this turn alone

            page = read_list(body, take)
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
        return await self._json("PATCH", path, query=query, body=body, content=_APPLY)

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
        """The API server's version, such as v1.37.0."""
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
        answer = await self._request("GET", f"{target}/{path}", accept="text/plain")
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
        answer = await self._request("GET", resource.path(namespace), query, limits=limits, watch=True)
        try:
            async for line in _lines(answer):
                event = read_object(line, "type", "object")
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
        query: Mapping[str, str] | None = None,
        body: Object | list[Object] | None = None,
        content: str = _JSON,
    ) -> Object:
        answer = await self._request(method, path, query, body, content=content)
        return read_object(await answer.read())

    async def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Object | list[Object] | None = None,
        *,
        content: str = _JSON,
        accept: str = _JSON,
        limits: aiohttp.ClientTimeout = _LIMITS,
        watch: bool = False,
    ) -> aiohttp.ClientResponse:
        """Sent again after the time that a busy server names, within RETRIES and REQUEST_SECONDS.

        The library would do that for reads alone, for as long as the server says.
        """
        retries, waited = 0, 0.0
        while True:
            if method != "GET":
                self._may_write()
            try:
                return await self._session.send(
                    method, path, query or {}, body, limits=limits, content=content, accept=accept, watch=watch
                )
            except KubeError as error:
                retries, waited = retries + 1, waited + error.retry_after
                if not error.retry_after or retries > RETRIES or waited > REQUEST_SECONDS:
                    raise
                await asyncio.sleep(error.retry_after)


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


def _anything() -> None:
    """A part without a Lease may send every write."""


def _dry(dry_run: bool) -> dict[str, str]:
    return {"dryRun": "All"} if dry_run else {}
