"""What the operator keeps of namespaces and claims: all that a plan reads, and not what their owners fill them with."""

import asyncio
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gpushare.api import names
from gpushare.controller.claims.cache import ClaimCache, ClaimStore, SliceStore
from gpushare.controller.claims.views import claim, devices
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
        (kept,) = cache.demand().claims
        (namespace,) = cache.all(NAMESPACES).values()
        assert kept == claim(whole)
        assert (kept.asked, kept.selects) == ({"threads": 25, "memory": 8 << 30}, True)
        assert namespace["metadata"]["labels"] == {"team": "ml"}
        assert len(repr(kept)) + len(json.dumps(namespace)) < 2_000
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


NAMES = st.sampled_from(["x", "y", "z"])
DEVICES = st.lists(st.tuples(st.sampled_from(["n1", "n2"]), st.sampled_from(["gpu-0", "gpu-1"])), max_size=3)


def claim_with(name: str, version: int, taken: list[tuple[str, str]]) -> Any:
    results = [{"driver": names.DRA_DRIVER, "pool": pool, "device": device} for pool, device in taken]
    return {
        "metadata": {"name": name, "namespace": "team", "resourceVersion": str(version)},
        "spec": {"devices": {"requests": [{"exactly": {"deviceClassName": names.device_class("a")}}]}},
        "status": {"allocation": {"devices": {"results": results}}},
    }


@given(changes=st.lists(st.tuples(NAMES, st.none() | DEVICES | st.just("listed")), max_size=20))
def test_what_claims_have_follows_each_change_as_a_new_list_would(changes: list[Any]) -> None:
    store, there = ClaimStore(lambda: None), dict[str, Any]()
    for version, (name, change) in enumerate(changes, start=1):
        if change == "listed":
            there.pop(name, None)
            store.replace(there.values(), str(version))
        elif change is None:
            there.pop(name, None)
            store.remove(claim_with(name, version, []))
        else:
            there[name] = claim_with(name, version, change)
            store.put(there[name])
        fresh = ClaimStore(lambda: None)
        fresh.replace(there.values(), str(version))
        given_out = store.allocated()
        assert given_out == fresh.allocated()
        assert sorted(store.all(), key=lambda item: item.name) == sorted(fresh.all(), key=lambda item: item.name)
        expected: dict[str, set[str]] = {}
        for obj in there.values():
            for result in obj["status"]["allocation"]["devices"]["results"]:
                expected.setdefault(result["pool"], set()).add(result["device"])
        assert given_out == expected


def test_what_was_given_out_stays_as_it_was_while_claims_change() -> None:
    store = ClaimStore(lambda: None)
    store.put(claim_with("x", 1, [("n1", "gpu-0")]))
    store.put(claim_with("y", 2, [("n2", "gpu-0")]))
    allocated, claims = store.allocated(), store.all()
    assert (store.allocated(), store.all()) == (allocated, claims)
    assert store.allocated() is allocated
    assert store.all() is claims
    store.put(claim_with("x", 3, []))
    assert allocated == {"n1": {"gpu-0"}, "n2": {"gpu-0"}}
    assert store.allocated() == {"n2": {"gpu-0"}}
    assert store.allocated()["n2"] is allocated["n2"], "a plan tells by identity what changed"
    assert [len(item.held) for item in claims] == [1, 1]


def test_the_devices_of_a_slice_go_with_it() -> None:
    store = SliceStore(lambda: None)
    spec = {"driver": names.DRA_DRIVER, "nodeName": "n1", "pool": {"name": "n1"}, "devices": [{"name": "gpu-1"}]}
    shown = {"metadata": {"name": "n1-gpus", "resourceVersion": "1"}, "spec": spec}
    store.put(shown)
    assert store.all() == tuple(devices(shown))
    assert store.all() is store.all()
    store.remove(shown)
    assert store.all() == ()
