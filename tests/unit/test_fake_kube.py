"""The API server that unit tests run against keeps the real one's rules, so that a test can rely on a refusal."""

import asyncio

import pytest

from gpushare.kube.client import GPU_SHARES, PODS, SECRETS, KubeError, Object
from tests.unit.fake_kube import FakeKube


def pod(name: str, namespace: str = "shop", **labels: str) -> Object:
    return {"metadata": {"name": name, "namespace": namespace, "labels": labels}, "spec": {"nodeName": "n1"}}


@pytest.fixture
def kube() -> FakeKube:
    return FakeKube()


async def test_an_object_exists_once(kube: FakeKube) -> None:
    assert await kube.find(PODS, "a", "shop") is None
    await kube.create(PODS, pod("a"), "shop")
    with pytest.raises(KubeError, match="AlreadyExists"):
        await kube.create(PODS, pod("a"), "shop")
    await kube.create(PODS, pod("a", "other"), "other")
    assert len(kube.all(PODS)) == 2


async def test_a_change_gets_a_version_and_a_changed_spec_a_generation(kube: FakeKube) -> None:
    first = await kube.create(GPU_SHARES, {"metadata": {"name": "a"}, "spec": {"delivery": "DevicePlugin"}})
    same = await kube.patch(GPU_SHARES, "a", {"spec": {"delivery": "DevicePlugin"}}, manager="m")
    assert same == first
    status = await kube.apply(
        GPU_SHARES, "a", {"metadata": {"name": "a"}, "status": {"nodes": 1}}, manager="m", subresource="status"
    )
    assert int(status["metadata"]["resourceVersion"]) > int(first["metadata"]["resourceVersion"])
    assert (status["metadata"]["generation"], status["spec"]) == (1, first["spec"])
    changed = await kube.patch(GPU_SHARES, "a", {"spec": {"delivery": "ResourceClaim"}}, manager="m")
    assert changed["metadata"]["generation"] == 2


@pytest.mark.parametrize("stale", [{"resourceVersion": "1"}, {"uid": "another"}])
async def test_a_write_about_another_object_is_a_conflict(kube: FakeKube, stale: dict[str, str]) -> None:
    kube.put(SECRETS, {"metadata": {"name": "tls", "namespace": "ns"}, "data": {}})
    with pytest.raises(KubeError, match="Conflict"):
        await kube.patch(SECRETS, "tls", {"metadata": stale, "data": {"a": "b"}}, manager="m", namespace="ns")


async def test_what_a_manager_no_longer_applies_goes_and_what_others_wrote_stays(kube: FakeKube) -> None:
    kube.put(SECRETS, {"metadata": {"name": "s", "labels": {"team": "ml"}}, "status": {"theirs": 1}})
    for labels, status in [({"a": "1", "b": "1"}, {"x": 1, "list": [1, 2]}), ({"b": "2"}, {"list": [3]})]:
        await kube.apply(SECRETS, "s", {"metadata": {"name": "s", "labels": labels}}, manager="m")
        await kube.apply(SECRETS, "s", {"metadata": {}, "status": status}, manager="m", subresource="status")
    live = kube.live(SECRETS, "s")
    assert live["metadata"]["labels"] == {"team": "ml", "b": "2"}
    assert live["status"] == {"theirs": 1, "list": [3]}


async def test_an_apply_that_names_a_uid_or_a_subresource_makes_no_object(kube: FakeKube) -> None:
    with pytest.raises(KubeError, match="Conflict"):
        await kube.apply(GPU_SHARES, "a", {"metadata": {"name": "a", "uid": "u"}}, manager="m")
    with pytest.raises(KubeError, match="NotFound"):
        await kube.apply(GPU_SHARES, "a", {"metadata": {}, "status": {}}, manager="m", subresource="status")
    assert kube.all(GPU_SHARES) == []


async def test_another_connection_sees_the_same_objects_and_fails_for_itself(kube: FakeKube) -> None:
    other = kube.connection()
    other.fail("get pods", OSError("reset"))
    kube.put(PODS, pod("a"))
    with pytest.raises(OSError, match="reset"):
        await other.get(PODS, "a", "shop")
    assert await kube.get(PODS, "a", "shop") == other.live(PODS, "a")
    assert (kube.requests, other.writes) == (["get pods/a"], [])


async def test_a_json_patch_whose_test_fails_changes_nothing(kube: FakeKube) -> None:
    kube.put(GPU_SHARES, {"metadata": {"name": "a"}, "spec": {}})
    operations = [
        {"op": "add", "path": "/spec/delivery", "value": "DevicePlugin"},
        {"op": "test", "path": "/metadata/name", "value": "b"},
    ]
    with pytest.raises(KubeError, match="Invalid"):
        await kube.patch(GPU_SHARES, "a", operations, manager="m", kind="json")
    assert kube.live(GPU_SHARES, "a")["spec"] == {}


async def test_an_object_with_a_finalizer_stays_until_it_is_removed(kube: FakeKube) -> None:
    kube.put(GPU_SHARES, {"metadata": {"name": "a", "finalizers": ["gpushare.dev/drain"]}})
    await kube.delete(GPU_SHARES, "a")
    assert kube.live(GPU_SHARES, "a")["metadata"]["deletionTimestamp"]
    await kube.patch(GPU_SHARES, "a", {"metadata": {"finalizers": []}}, manager="m")
    assert kube.all(GPU_SHARES) == []


async def test_a_dry_run_is_refused_like_any_write_and_stores_nothing(kube: FakeKube) -> None:
    kube.fail("create gpushares", KubeError(403, "Forbidden", "no"))
    with pytest.raises(KubeError, match="Forbidden"):
        await kube.create(GPU_SHARES, {"metadata": {"name": "a"}}, dry_run=True)
    kube.heal()
    await kube.create(GPU_SHARES, {"metadata": {"name": "a"}}, dry_run=True)
    assert kube.all(GPU_SHARES) == []
    assert kube.writes == ["create gpushares/a"] * 2


async def test_lists_and_watches_see_what_their_selectors_select(kube: FakeKube) -> None:
    kube.put(PODS, pod("a", team="ml"))
    kube.put(PODS, pod("b", team="web"))
    listed = await kube.list_all(PODS, "shop", labelSelector="team=ml")
    assert [item["metadata"]["name"] for item in listed["items"]] == ["a"]
    events = kube.watch(PODS, "shop", listed["metadata"]["resourceVersion"], {"fieldSelector": "metadata.name=c"})
    kube.put(PODS, pod("d"))
    kube.put(PODS, pod("c"))
    async with asyncio.timeout(5):
        event = await anext(events)
        assert (event["type"], event["object"]["metadata"]["name"]) == ("ADDED", "c")
        later = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        kube.remove(PODS, "c", "shop")
        assert (await later)["type"] == "DELETED"


async def test_an_expired_version_is_gone_and_a_broken_watch_raises(kube: FakeKube) -> None:
    kube.put(PODS, pod("a"))
    open_watch = asyncio.ensure_future(anext(kube.watch(PODS, None, str(kube.version), {})))
    await kube.followed(PODS)
    kube.break_watches(OSError("reset"))
    with pytest.raises(OSError, match="reset"):
        await open_watch
    kube.expire()
    with pytest.raises(KubeError, match="Expired"):
        await anext(kube.watch(PODS, None, "1", {}))


async def test_a_watch_that_lags_tells_everything_once_it_is_healed(kube: FakeKube) -> None:
    later = asyncio.ensure_future(anext(kube.watch(PODS, None, str(kube.version), {})))
    await kube.followed(PODS)
    kube.lag()
    kube.put(PODS, pod("a"))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not later.done()
    kube.heal()
    assert (await later)["object"]["metadata"]["name"] == "a"


async def test_a_request_may_never_be_answered(kube: FakeKube) -> None:
    kube.fail("get pods")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await kube.get(PODS, "a", "shop")
