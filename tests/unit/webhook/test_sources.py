"""What reviews are decided on: watched objects, and a direct question for what the watch has not seen yet."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from gpushare.kube.client import (
    CLAIM_TEMPLATES,
    GPU_NODES,
    GPU_SHARES,
    NAMESPACES,
    RESOURCE_CLAIMS,
    KubeError,
    Object,
)
from gpushare.webhook.sources import MOST_MISSING, PAUSES, ClusterSources
from tests.unit.fake_kube import FakeKube


def share(name: str, per_gpu: int) -> Object:
    return {"metadata": {"name": name}, "spec": {"clients": {"perGpu": per_gpu, "memory": {"default": "8Gi"}}}}


def namespace(name: str) -> Object:
    return {"metadata": {"name": name, "labels": {"team": name}}}


def asked(kube: FakeKube) -> list[str]:
    """The objects that were asked for one by one."""
    return [request.split()[1] for request in kube.requests if request.startswith("get")]


@pytest.fixture
def kube() -> FakeKube:
    kube = FakeKube()
    kube.put(GPU_SHARES, share("old", 8))
    kube.put(NAMESPACES, namespace("shop"))
    return kube


@pytest.fixture
async def sources(kube: FakeKube) -> AsyncIterator[ClusterSources]:
    """The sources with watches that are open."""
    sources = ClusterSources(kube)  # type: ignore[arg-type]
    assert not sources.synced
    task = asyncio.create_task(sources.run())
    await kube.followed(GPU_SHARES, NAMESPACES)
    assert sources.synced
    yield sources
    task.cancel()


async def test_a_watched_object_needs_no_request(kube: FakeKube, sources: ClusterSources) -> None:
    assert (await sources.shares({"old"}))["old"].spec.clients.per_gpu == 8
    assert await sources.namespace_labels("shop") == {"team": "shop"}
    assert sources.share_names() == ["old"]
    assert asked(kube) == []


async def test_what_was_created_a_moment_ago_is_found(kube: FakeKube, sources: ClusterSources) -> None:
    kube.lag()
    kube.put(GPU_SHARES, share("new", 4))
    kube.put(NAMESPACES, namespace("team"))
    assert set(await sources.shares({"new", "none", ""})) == {"new"}
    assert await sources.namespace_labels("team") == {"team": "team"}
    assert await sources.namespace_labels("none") == {}
    assert sorted(asked(kube)) == ["gpushares/new", "gpushares/none", "namespaces/none", "namespaces/team"]


async def test_a_changed_share_is_parsed_again(kube: FakeKube, sources: ClusterSources) -> None:
    before = (await sources.shares({"old"}))["old"]
    assert (await sources.shares({"old"}))["old"] is before
    kube.put(GPU_SHARES, share("old", 2))
    await kube.followed()
    assert (await sources.shares({"old"}))["old"].spec.clients.per_gpu == 2


async def test_a_pods_claims_are_read_from_claims_and_templates(kube: FakeKube, sources: ClusterSources) -> None:
    spec = {"devices": {"requests": [{"name": "gpu"}]}}
    kube.put(RESOURCE_CLAIMS, {"metadata": {"name": "own", "namespace": "shop"}, "spec": spec})
    kube.put(CLAIM_TEMPLATES, {"metadata": {"name": "small.a", "namespace": "shop"}, "spec": {"spec": spec}})
    entries = [
        {"name": "one", "resourceClaimName": "own"},
        {"name": "two", "resourceClaimTemplateName": "small.a"},
        {"name": "three", "resourceClaimName": "missing"},
        {"name": "four"},
    ]
    assert await sources.claims("shop", entries) == {"one": spec, "two": spec}


async def test_names_of_what_there_is_not_cost_few_requests(kube: FakeKube, sources: ClusterSources) -> None:
    """Everybody who reaches the webhook may send a review of 64 claims and 32 shares."""
    kube.put(RESOURCE_CLAIMS, {"metadata": {"name": "own", "namespace": "shop"}, "spec": {"devices": {}}})
    unknown = [{"name": f"c{number}", "resourceClaimName": f"none-{number}"} for number in range(63)]
    assert await sources.claims("shop", [{"name": "mine", "resourceClaimName": "own"}, *unknown]) == {
        "mine": {"devices": {}}
    }
    assert await sources.shares({"old", *(f"none-{number}" for number in range(31))}) != {}
    assert len(asked(kube)) <= 3 * MOST_MISSING
    kube.requests.clear()
    kube.put(RESOURCE_CLAIMS, {"metadata": {"name": "none-0", "namespace": "shop"}, "spec": {"devices": {}}})
    assert await sources.claims("shop", unknown[:1]) == {"c0": {"devices": {}}}, "that there was none is not remembered"


async def test_of_many_claims_that_exist_each_is_read(kube: FakeKube, sources: ClusterSources) -> None:
    for number in range(40):
        metadata = {"name": f"own-{number}", "namespace": "shop"}
        kube.put(RESOURCE_CLAIMS, {"metadata": metadata, "spec": {"devices": {}}})
    entries = [{"name": f"c{number}", "resourceClaimName": f"own-{number}"} for number in range(40)]
    assert len(await sources.claims("shop", entries)) == 40


def unguarded(status: str) -> Object:
    condition = {"type": "DeparturesGuarded", "status": status}
    return {**share("old", 8), "status": {"conditions": [condition]}}


async def test_whether_an_agent_is_silent_is_asked_only_while_some_share_says_so(
    kube: FakeKube, sources: ClusterSources
) -> None:
    silent = {"type": "AgentReporting", "status": "Unknown", "reason": "AgentSilent", "message": "no heartbeat",
              "lastTransitionTime": "2026-01-01T00:00:00Z"}  # fmt: skip
    kube.put(GPU_NODES, {"metadata": {"name": "n1"}, "status": {"conditions": [silent]}})
    kube.put(GPU_NODES, {"metadata": {"name": "n2"}})
    assert await sources.silence("n1") == ""
    assert asked(kube) == []
    kube.put(GPU_SHARES, unguarded("False"))
    await kube.followed()
    assert [await sources.silence(node) for node in ("n1", "n2", "none", "")] == ["no heartbeat", "", "", ""]
    kube.put(GPU_SHARES, unguarded("True"))
    await kube.followed()
    assert await sources.silence("n1") == ""


ENTRY = {"name": "one", "resourceClaimName": "own"}


@pytest.mark.parametrize(
    "error", [KubeError(500, "InternalError", ""), OSError("broken off")], ids=["InternalError", "a broken connection"]
)
async def test_a_question_that_failed_is_asked_again(kube: FakeKube, sources: ClusterSources, error: Exception) -> None:
    kube.put(RESOURCE_CLAIMS, {"metadata": {"name": "own", "namespace": "shop"}, "spec": {"devices": {}}})
    kube.fail("get resourceclaims", error)
    asking = asyncio.create_task(sources.claims("shop", [ENTRY]))
    await asyncio.sleep(PAUSES[0] / 2)
    assert asked(kube)
    kube.heal()
    assert await asking == {"one": {"devices": {}}}
    assert len(asked(kube)) > 1


@pytest.mark.parametrize(
    ("error", "times"),
    [
        (KubeError(500, "InternalError", ""), len(PAUSES) + 1),
        (KubeError(403, "Forbidden", ""), 1),
        (KubeError(429, "TooManyRequests", "", retry_after=1.0), 1),
    ],
    ids=["a failure", "a refusal", "a server that asks for time"],
)
async def test_what_is_wrong_with_the_last_question_is_told(
    kube: FakeKube, sources: ClusterSources, error: KubeError, times: int
) -> None:
    kube.fail("get resourceclaims", error)
    with pytest.raises(KubeError, match=error.reason):
        await sources.claims("shop", [ENTRY])
    assert len(asked(kube)) == times
