"""Requests to the API server as plain dicts, each with a time limit.

The generated client supplies configuration, authentication (with token reload) and transport; typed models are left
out, since what we write is server-side apply and what we read goes into our own models.
"""

import json
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import aiohttp
from kubernetes.aio import client, config

Object = dict[str, Any]

REQUEST_SECONDS = 15.0
WATCH_SECONDS = 300
"""Length of one watch request; the server ends it and we go on from the last resource version."""

_PATCH_TYPES = {"merge": "application/merge-patch+json", "json": "application/json-patch+json"}


class KubeError(Exception):
    """The API server refused. `status` is the HTTP status, `reason` the API's own word, such as AlreadyExists."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{reason or status}: {message}")
        self.status = status
        self.reason = reason

    @property
    def not_found(self) -> bool:
        return self.status == HTTPStatus.NOT_FOUND

    @property
    def conflict(self) -> bool:
        return self.status == HTTPStatus.CONFLICT

    @property
    def gone(self) -> bool:
        return self.status == HTTPStatus.GONE


CONNECTION_ERRORS = (aiohttp.ClientError, TimeoutError, OSError)
"""The API server did not answer."""
API_ERRORS = (KubeError, *CONNECTION_ERRORS)
"""What a request raises: a refusal, a broken connection, a time limit. Retry; nothing else is wrong with us."""


@dataclass(frozen=True, slots=True)
class Resource:
    """Where a kind lives. `group` is empty for the core API."""

    group: str
    version: str
    plural: str

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        parts = ["/apis", self.group, self.version] if self.group else ["/api", self.version]
        if namespace is not None:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.plural)
        if name is not None:
            parts.append(quote(name, safe=""))
        if subresource is not None:
            parts.append(subresource)
        return "/".join(parts)


GPU_SHARES = Resource("gpushare.dev", "v1alpha1", "gpushares")
GPU_NODES = Resource("gpushare.dev", "v1alpha1", "gpunodes")
NODES = Resource("", "v1", "nodes")
PODS = Resource("", "v1", "pods")
NAMESPACES = Resource("", "v1", "namespaces")
SECRETS = Resource("", "v1", "secrets")
DAEMON_SETS = Resource("apps", "v1", "daemonsets")
RESOURCE_SLICES = Resource("resource.k8s.io", "v1", "resourceslices")
RESOURCE_CLAIMS = Resource("resource.k8s.io", "v1", "resourceclaims")
CLAIM_TEMPLATES = Resource("resource.k8s.io", "v1", "resourceclaimtemplates")
DEVICE_CLASSES = Resource("resource.k8s.io", "v1", "deviceclasses")
MUTATING_WEBHOOKS = Resource("admissionregistration.k8s.io", "v1", "mutatingwebhookconfigurations")
VALIDATING_WEBHOOKS = Resource("admissionregistration.k8s.io", "v1", "validatingwebhookconfigurations")
POLICIES = Resource("admissionregistration.k8s.io", "v1", "validatingadmissionpolicies")
EVENTS = Resource("events.k8s.io", "v1", "events")
CORE_EVENTS = Resource("", "v1", "events")
"""The same objects as the kubelet writes them, and the only form whose selectors name the object concerned."""


async def connect(user_agent: str) -> "Kube":
    """In a pod its service account, elsewhere KUBECONFIG or ~/.kube/config.

    Raises kubernetes' ConfigException with what is missing.
    """
    configuration = client.Configuration()
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        config.load_incluster_config(client_configuration=configuration)
    else:
        await config.load_kube_config(client_configuration=configuration)
    api = client.ApiClient(configuration)
    api.user_agent = user_agent
    return Kube(api)


class Kube:
    """One connection pool to one API server. Safe to use from many tasks of one event loop."""

    def __init__(self, api: client.ApiClient) -> None:
        self.api = api

    async def close(self) -> None:
        await self.api.close()

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
        raw = await self._request("GET", f"{target}/{path}", {}, None, None, REQUEST_SECONDS, accept="text/plain")
        text: str = (await raw.read()).decode()
        return text

    async def watch(
        self, resource: Resource, namespace: str | None, version: str, selectors: dict[str, str]
    ) -> AsyncIterator[Object]:
        """Watch events from `version` on, until the server ends the request. KubeError.gone: list again."""
        query = {
            **selectors,
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        raw = await self._request("GET", resource.path(namespace), query, None, None, WATCH_SECONDS + 15)
        try:
            async for line in raw.response.content:
                event: Object = json.loads(line)
                if event["type"] == "ERROR":
                    status = event["object"]
                    raise KubeError(status.get("code", 500), status.get("reason", ""), status.get("message", ""))
                yield event
        finally:
            raw.response.close()

    async def _json(
        self,
        method: str,
        path: str,
        *,
        query: dict[str, str] | None = None,
        body: Object | list[Object] | None = None,
        content: str | None = None,
    ) -> Object:
        raw = await self._request(method, path, query or {}, body, content, REQUEST_SECONDS)
        result: Object = json.loads(await raw.read())
        return result

    async def _request(
        self,
        method: str,
        path: str,
        query: dict[str, str],
        body: Object | list[Object] | None,
        content: str | None,
        seconds: float,
        accept: str = "application/json",
    ) -> Any:
        headers = {"Accept": accept, "Content-Type": content or "application/json"}
        request = await self.api.param_serialize(
            method,
            path,
            query_params=list(query.items()),
            header_params=headers,
            body=body,
            auth_settings=["BearerToken"],
        )
        raw = await self.api.call_api(*request, _request_timeout=seconds)
        if raw.status >= HTTPStatus.BAD_REQUEST:
            raise _error(raw.status, await raw.read())
        return raw


def _dry(dry_run: bool) -> dict[str, str]:
    return {"dryRun": "All"} if dry_run else {}


def _error(status: int, body: bytes) -> KubeError:
    """Something between us and the API server may answer with anything, so only a Status object is read."""
    try:
        answer = json.loads(body)
        return KubeError(status, str(answer.get("reason", "")), str(answer.get("message", "")))
    except (ValueError, AttributeError):
        return KubeError(status, "", body[:200].decode(errors="replace"))
