"""What the operator keeps of namespaces and claims: all that a plan reads, and not what their owners fill them with."""

import asyncio
import json
from typing import Any

from gpushare.api import names
from gpushare.controller.claims.cache import ClaimCache
from gpushare.controller.claims.views import ClaimReader, claim
from gpushare.kube.client import NAMESPACES, RESOURCE_CLAIMS
from tests.unit.fake_kube import FakeKube

LARGE = "x" * 200_000


def large_claim(name: str, device_class: str) -> Any:
    request = {
        "deviceClassName": device_class,
        "capacity": {"requests": {"threads": "25", "memory": "8Gi"}},
        "selectors": [{"cel": {"expression": LARGE}}],
    }
    result = {"driver": "gpushare.dev", "pool": "n", "device": "gpu-0", "consumedCapacity": {"threads": "25"}}
    foreign = {"driver": "other.example.com", "pool": LARGE, "device": "d"}
    return {
        "metadata": {
            "name": name,
            "namespace": "team",
            "annotations": {"a": LARGE},
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": request}], "config": [{"opaque": LARGE}]}},
        "status": {"allocation": {"devices": {"results": [result, foreign]}}},
    }


async def test_a_claim_is_read_as_before_and_takes_a_hundredth_of_its_room() -> None:
    kube = FakeKube()
    whole = kube.put(RESOURCE_CLAIMS, large_claim("ours", names.device_class("a")))
    kube.put(NAMESPACES, {"metadata": {"name": "team", "labels": {"team": "ml"}, "annotations": {"a": LARGE}}})
    cache = ClaimCache(lambda: None)
    cache.follow(kube)  # type: ignore[arg-type]
    try:
        async with asyncio.timeout(5):
            while not cache.known:  # noqa: ASYNC110 - each round is a step of every task
                await asyncio.sleep(0)
        (kept,) = cache.all(RESOURCE_CLAIMS).values()
        (namespace,) = cache.all(NAMESPACES).values()
        assert list(claim(kept)) == list(claim(whole)) == list(ClaimReader().demand(cache).claims)
        assert next(iter(claim(kept))).asked == {"threads": 25, "memory": 8 << 30}
        assert namespace["metadata"]["labels"] == {"team": "ml"}
        assert len(json.dumps([kept, namespace])) < 2_000
    finally:
        await cache.close()


async def test_what_owners_write_into_their_claims_wakes_no_plan() -> None:
    kube, changes = FakeKube(), asyncio.Event()
    kube.put(RESOURCE_CLAIMS, large_claim("ours", names.device_class("a")))
    cache = ClaimCache(changes.set)
    cache.follow(kube)  # type: ignore[arg-type]
    try:
        async with asyncio.timeout(5):
            while not cache.known:  # noqa: ASYNC110 - each round is a step of every task
                await asyncio.sleep(0)
            changes.clear()
            scribbled = large_claim("ours", names.device_class("a"))
            scribbled["metadata"]["labels"] = {"of": "its owner"}
            cache.observe(RESOURCE_CLAIMS, kube.put(RESOURCE_CLAIMS, scribbled))
            assert not changes.is_set()
            del scribbled["status"]
            cache.observe(RESOURCE_CLAIMS, kube.put(RESOURCE_CLAIMS, scribbled))
            assert changes.is_set()
    finally:
        await cache.close()
