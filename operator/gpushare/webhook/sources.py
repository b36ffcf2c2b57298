"""Objects that reviews are decided on: from watches, and with one GET where the watch has not seen the object yet.

Guarantees: a share or namespace created a moment ago is found; a share's limits are at most a watch's delay old. A GET
that the API server fails is sent again, since a review that fails refuses what a user creates. Of the shares and of the
claims that a review names, which anybody may send, no more are asked for once MOST_MISSING do not exist: a pod with
such shares is refused anyway, and the node's agent checks each claim again. That there is none is not remembered: it
may be created in the next moment.
"""

import asyncio
import re
from collections.abc import Collection, Mapping
from typing import Any, Protocol

from gpushare.api.gpunode import GpuNode
from gpushare.api.gpushare import GpuShare
from gpushare.kube.cache.kept import kept_namespace
from gpushare.kube.cache.reflector import Reflector
from gpushare.kube.client import (
    API_ERRORS,
    CLAIM_TEMPLATES,
    GPU_NODES,
    GPU_SHARES,
    NAMESPACES,
    RESOURCE_CLAIMS,
    Kube,
    KubeError,
    Object,
    Resource,
)
from gpushare.webhook.claims import claim_spec
from gpushare.webhook.shares import unguarded

_NAME = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")
"""A DNS subdomain. No object has another name, so none is asked for: a name becomes part of a path."""

PAUSES = (0.05, 0.2, 0.8)
"""Seconds before each further GET, all within the time of a review."""


MOST_MISSING = 8


class Sources(Protocol):
    async def shares(self, names: Collection[str]) -> dict[str, GpuShare]:
        """The existing ones of `names`, by name."""
        ...

    def share_names(self) -> list[str]: ...

    async def claims(self, namespace: str, pod_claims: Collection[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        """The specs of a pod's claims or their templates, by name in its spec.resourceClaims; missing ones left out."""
        ...

    async def silence(self, node: str) -> str:
        """Why the agent of a node guards no departures; empty where nothing says so."""
        ...

    async def namespace_labels(self, name: str) -> dict[str, str]:
        """The namespace's labels; empty where there is none: the API server itself then refuses the pod."""
        ...


class ClusterSources:
    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._shares = Reflector(kube, GPU_SHARES, _nothing)
        self._namespaces = Reflector(kube, NAMESPACES, _nothing, prune=kept_namespace)
        self._parsed: dict[str, tuple[str, GpuShare]] = {}

    @property
    def synced(self) -> bool:
        return self._shares.synced.is_set() and self._namespaces.synced.is_set()

    async def run(self) -> None:
        """Follows both kinds until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._shares.run())
            tasks.create_task(self._namespaces.run())

    async def shares(self, names: Collection[str]) -> dict[str, GpuShare]:
        objects = {name: self._shares.objects.get(("", name)) for name in sorted(names)}
        missing = 0
        for name in [name for name, obj in objects.items() if obj is None]:
            if missing == MOST_MISSING:
                break
            objects[name] = await self._find(GPU_SHARES, self._shares, name)
            missing += objects[name] is None
        return {name: self._parse(name, obj) for name, obj in objects.items() if obj is not None}

    def share_names(self) -> list[str]:
        return sorted(name for _, name in self._shares.objects)

    async def namespace_labels(self, name: str) -> dict[str, str]:
        namespace = await self._find(NAMESPACES, self._namespaces, name)
        return dict((namespace or {"metadata": {}})["metadata"].get("labels") or {})

    async def silence(self, node: str) -> str:
        """Costs a request only while some share says that an agent of its is silent."""
        if not node or not any(map(unguarded, self._shares.objects.values())):
            return ""
        gpu_node = await self._read(GPU_NODES, node)
        conditions = ((gpu_node or {}).get("status") or {}).get("conditions") or []
        return GpuNode.model_validate({"metadata": {"name": node}, "status": {"conditions": conditions}}).silence

    async def claims(self, namespace: str, pod_claims: Collection[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        """A request for each claim: few pods have claims, and watching would cost for all claims of the cluster."""
        entries, claims = list(pod_claims), dict[str, dict[str, Any]]()
        for begin in range(0, len(entries), MOST_MISSING):
            some = entries[begin : begin + MOST_MISSING]
            specs = await asyncio.gather(*(self._claim(namespace, entry) for entry in some))
            claims |= {
                str(entry.get("name")): spec for entry, spec in zip(some, specs, strict=True) if spec is not None
            }
            if begin + len(some) - len(claims) >= MOST_MISSING:
                break
        return claims

    async def _claim(self, namespace: str, entry: Mapping[str, Any]) -> dict[str, Any] | None:
        kinds = {"resourceClaimName": RESOURCE_CLAIMS, "resourceClaimTemplateName": CLAIM_TEMPLATES}
        resource, name = next(((kind, entry[key]) for key, kind in kinds.items() if entry.get(key)), (None, ""))
        if resource is None or not _NAME.fullmatch(name) or not _NAME.fullmatch(namespace):
            return None
        claim = await self._read(resource, name, namespace)
        return None if claim is None else claim_spec(claim)

    async def _find(self, resource: Resource, reflector: Reflector, name: str) -> Object | None:
        if not _NAME.fullmatch(name):
            return None
        known = reflector.objects.get(("", name))
        return known if known is not None else await self._read(resource, name)

    async def _read(self, resource: Resource, name: str, namespace: str | None = None) -> Object | None:
        """The object from the API server; None: there is none. API_ERRORS: a refusal, or the last of the failures."""
        for pause in PAUSES:
            try:
                return await self._kube.find(resource, name, namespace)
            except API_ERRORS as error:
                if isinstance(error, KubeError) and (error.retry_after or not error.failed):
                    raise
            await asyncio.sleep(pause)
        return await self._kube.find(resource, name, namespace)

    def _parse(self, name: str, obj: Object) -> GpuShare:
        """One parsed share for each name, parsed again when the object changes: parsing is most of a review's time."""
        version = str(obj["metadata"].get("resourceVersion", ""))
        known = self._parsed.get(name)
        if known is None or known[0] != version:
            self._parsed = {kept: parsed for kept, parsed in self._parsed.items() if ("", kept) in self._shares.objects}
            known = self._parsed[name] = (version, GpuShare.model_validate(obj))
        return known[1]


def _nothing() -> None:
    """A change wakes nothing: reviews read the watches' objects when they need them."""
