"""An API server in memory, as far as the operator needs one: versions, generations, refusals on demand."""

import asyncio
import copy
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gpushare.controller.settings import OperatorSettings
from gpushare.kube.client import DAEMON_SETS, EVENTS, GPU_NODES, GPU_SHARES, NODES, KubeError, Object, Resource

NAMESPACED = {DAEMON_SETS.plural, EVENTS.plural}


class FakeKube:
    """`writes` lists what was asked for, refused or not; events are kept apart in `events`."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], Object] = {}
        self.writes: list[str] = []
        self.events: list[Object] = []
        self.refused: set[str] = set()
        self.version = 100
        self.kubernetes = "v1.37.0"
        self.serves_claims = True
        self._written = asyncio.Event()

    def put(self, resource: Resource, obj: Object) -> None:
        """As somebody else would write it."""
        self._store(resource, obj["metadata"]["name"], obj)

    def live(self, resource: Resource, name: str) -> Object:
        return self.objects[resource.plural, name]

    async def server_version(self) -> str:
        return self.kubernetes

    async def served(self, resource: Resource) -> bool:
        return self.serves_claims

    async def list_all(self, resource: Resource, namespace: str | None = None, **_: str) -> Object:
        items = [copy.deepcopy(obj) for (plural, _), obj in self.objects.items() if plural == resource.plural]
        return {"metadata": {"resourceVersion": str(self.version)}, "items": items}

    async def pages(
        self, resource: Resource, namespace: str | None = None, **selectors: str
    ) -> AsyncIterator[tuple[list[Object], str]]:
        answer = await self.list_all(resource, namespace, **selectors)
        yield answer["items"], answer["metadata"]["resourceVersion"]

    async def watch(self, resource: Resource, *_: Any) -> AsyncIterator[Object]:
        await asyncio.Event().wait()
        yield {}

    async def apply(self, resource: Resource, name: str, body: Object, *, manager: str, **where: Any) -> Object:
        self._ask(f"apply {resource.plural}/{name}" + (f"/{where['subresource']}" if where.get("subresource") else ""))
        known = self.objects.get((resource.plural, name))
        if body["metadata"].get("uid") and known is None:
            raise KubeError(409, "Conflict", "uid mismatch")
        return self._store(resource, name, _merged(known or {}, body))

    async def patch(self, resource: Resource, name: str, body: Any, *, manager: str, **_: Any) -> Object:
        self._ask(f"patch {resource.plural}/{name}")
        if (resource.plural, name) not in self.objects:
            raise KubeError(404, "NotFound", name)
        return self._store(resource, name, _merged(self.objects[resource.plural, name], body))

    async def delete(self, resource: Resource, name: str, namespace: str | None = None, uid: str = "") -> None:
        self._ask(f"delete {resource.plural}/{name}")
        self.objects.pop((resource.plural, name), None)
        self.version += 1

    async def create(self, resource: Resource, body: Object, namespace: str | None = None) -> Object:
        if resource == EVENTS:
            self.events.append(body)
            return body
        return self._store(resource, body["metadata"]["name"], body)

    async def find(self, resource: Resource, name: str, namespace: str | None = None) -> Object | None:
        return copy.deepcopy(self.objects.get((resource.plural, name)))

    async def written(self) -> None:
        """Returns after the next write."""
        self._written.clear()
        await self._written.wait()

    def _ask(self, what: str) -> None:
        self.writes.append(what)
        self._written.set()
        if what in self.refused:
            raise KubeError(403, "Forbidden", "a policy says no")

    def _store(self, resource: Resource, name: str, obj: Object) -> Object:
        key = resource.plural, name
        known, stored = self.objects.get(key), copy.deepcopy(obj)
        metadata = stored["metadata"]
        metadata.setdefault("uid", f"uid-{name}")
        if known is not None and _without_version(known) == _without_version(stored):
            return copy.deepcopy(known)
        self.version += 1
        metadata["resourceVersion"] = str(self.version)
        if known is None or known.get("spec") != stored.get("spec"):
            metadata["generation"] = metadata.get("generation", 0) + 1
        self.objects[key] = stored
        if metadata.get("deletionTimestamp") and metadata.get("finalizers") == []:
            del self.objects[key]
        return copy.deepcopy(stored)


def _without_version(obj: Object) -> Object:
    metadata = {key: value for key, value in obj["metadata"].items() if key not in ("resourceVersion", "generation")}
    return {**obj, "metadata": metadata}


def _merged(known: Object, patch: Object) -> Object:
    result = dict(known)
    for key, value in patch.items():
        if isinstance(value, dict):
            result[key] = _merged(result.get(key) or {}, value)
        elif value is None:
            result.pop(key, None)
        else:
            result[key] = value
    return result


@pytest.fixture
def settings() -> OperatorSettings:
    return OperatorSettings(namespace="gpushare-system", pod_name="operator-0", image="gpushare:test", simulation=True)


@pytest.fixture
def kube() -> FakeKube:
    """One share, one node with one GPU, and an agent that has told of it."""
    kube = FakeKube()
    clients = {"perGpu": 4, "memory": {"default": "16Gi"}}
    kube.put(
        GPU_SHARES,
        {
            "metadata": {"name": "a", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"clients": clients, "nodeSelector": {"matchLabels": {"pool": "gpu"}}},
        },
    )
    ready = {"type": "Ready", "status": "True"}
    kube.put(
        NODES,
        {
            "metadata": {"name": "n1", "labels": {"pool": "gpu"}},
            "status": {"conditions": [ready], "allocatable": {"cpu": "8", "nvidia.com/gpu": "0"}},
        },
    )
    gpu = {"uuid": "GPU-1", "index": 0, "minor": 0, "product": "NVIDIA H200", "memoryMib": 143155, "sms": 132}
    kube.put(
        GPU_NODES,
        {
            "metadata": {"name": "n1"},
            "spec": {},
            "status": {"observedGeneration": 1, "gpus": [gpu | {"computeMode": "Default"}]},
        },
    )
    return kube
