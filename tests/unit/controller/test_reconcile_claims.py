"""A share delivered by claims, from the first round to its end: what it is reached by, and who is told what lacks."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest
from prometheus_client import CollectorRegistry

from gpushare.controller.apply import FIRST_BACKOFF
from gpushare.controller.metrics import OperatorMeters
from gpushare.controller.reconcile import Reconciler
from gpushare.controller.settings import OperatorSettings
from gpushare.kube.client import (
    CLAIM_TEMPLATES,
    DEVICE_CLASSES,
    GPU_NODES,
    GPU_SHARES,
    NAMESPACES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    KubeError,
)
from tests.unit.clock import Clock
from tests.unit.controller.claims.test_views import CLAIM, SLICE
from tests.unit.controller.listing import relist
from tests.unit.fake_kube import FORBIDDEN, FakeKube

NOW = datetime(2026, 3, 1, 1, tzinfo=UTC)
FOLLOWED = (DEVICE_CLASSES, CLAIM_TEMPLATES, NAMESPACES, RESOURCE_CLAIMS, RESOURCE_SLICES)
"""What is watched as long as a share is delivered by claims."""
SIZE = {"name": "small", "threads": 10, "memory": "8Gi"}


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def reconciler(kube: FakeKube, settings: OperatorSettings, clock: Clock) -> AsyncIterator[Reconciler]:
    live = kube.live(GPU_SHARES, "a")
    kube.put(GPU_SHARES, {**live, "spec": {**live["spec"], "delivery": "ResourceClaim", "sizes": [SIZE]}})
    kube.put(NAMESPACES, {"metadata": {"name": "ml"}})
    reconciler = Reconciler(kube, settings, OperatorMeters(CollectorRegistry()), lambda: NOW, monotonic=clock)
    await relist(kube, reconciler)
    yield reconciler
    await reconciler.cache.claims.close()


async def settle(kube: FakeKube, reconciler: Reconciler) -> None:
    """A round that begins to follow claims, and those that act on what is there."""
    for _ in range(4):
        await reconciler.once()
        await kube.followed(*FOLLOWED)


async def test_a_share_gets_its_classes_and_templates_and_then_there_is_silence(
    kube: FakeKube, reconciler: Reconciler
) -> None:
    await settle(kube, reconciler)
    assert {obj["metadata"]["name"] for obj in kube.all(DEVICE_CLASSES)} == {
        "a.gpushare.dev",
        "small.a.gpushare.dev",
    }
    assert kube.live(CLAIM_TEMPLATES, "small.a")["metadata"]["namespace"] == "ml"
    kube.writes.clear()
    await settle(kube, reconciler)
    assert kube.writes == []


async def test_a_tenant_who_has_a_templates_name_is_told_of_on_the_share(
    kube: FakeKube, reconciler: Reconciler, clock: Clock
) -> None:
    """The template of another has no label of ours, and its spec cannot be changed: the API server says Invalid."""
    immutable = KubeError(422, "Invalid", "spec: Invalid value: field is immutable " + "x" * 100_000)
    kube.fail("apply resourceclaimtemplates/small.a", immutable)
    await settle(kube, reconciler)
    assert not [event for event in kube.events if event["reason"] == "WriteRefused"], "once may be a chance"
    for _ in range(3):
        clock.now += FIRST_BACKOFF
        await reconciler.once()
    notes = [event["note"] for event in kube.events if event["reason"] == "WriteRefused"]
    assert notes
    assert "kubectl delete resourceclaimtemplate -n ml small.a" in notes[0]
    assert "field is immutable" in notes[0]
    assert len(notes[0]) < 700


async def test_a_share_that_is_deleted_loses_them_first_and_goes(kube: FakeKube, reconciler: Reconciler) -> None:
    await settle(kube, reconciler)
    live = kube.live(GPU_SHARES, "a")
    kube.put(GPU_SHARES, {**live, "metadata": {**live["metadata"], "deletionTimestamp": "2026-03-01T00:00:00Z"}})
    await relist(kube, reconciler)
    kube.writes.clear()
    await reconciler.once()
    assert set(kube.writes[:3]) == {
        "delete deviceclasses/a.gpushare.dev",
        "delete resourceclaimtemplates/small.a",
        "delete deviceclasses/small.a.gpushare.dev",
    }


async def test_a_share_stays_while_its_templates_cannot_be_deleted(
    kube: FakeKube, reconciler: Reconciler, settings: OperatorSettings
) -> None:
    await settle(kube, reconciler)
    live = kube.live(GPU_SHARES, "a")
    kube.put(GPU_SHARES, {**live, "metadata": {**live["metadata"], "deletionTimestamp": "2026-03-01T00:00:00Z"}})
    kube.fail("delete resourceclaimtemplates", FORBIDDEN)
    await end(kube, settings)
    assert not kube.has(DEVICE_CLASSES, "a.gpushare.dev")
    assert kube.has(GPU_SHARES, "a")
    kube.heal()
    await end(kube, settings)
    assert not kube.has(GPU_SHARES, "a")


async def end(kube: FakeKube, settings: OperatorSettings) -> None:
    """All that operators do about a share that is deleted. Each lists the objects of claims anew."""
    for _ in range(4):
        node = kube.live(GPU_NODES, "n1")
        observed = {"observedGeneration": node["metadata"]["generation"]}
        kube.put(GPU_NODES, {**node, "status": node["status"] | observed})
        successor = Reconciler(kube, settings, OperatorMeters(CollectorRegistry()), lambda: NOW)
        await relist(kube, successor)
        await settle(kube, successor)
        await successor.cache.claims.close()


async def test_a_claim_that_fits_nowhere_is_told_once_and_in_the_share(kube: FakeKube, reconciler: Reconciler) -> None:
    kube.put(RESOURCE_SLICES, {**SLICE, "spec": {**SLICE["spec"], "devices": []}})
    kube.put(RESOURCE_CLAIMS, CLAIM)
    await settle(kube, reconciler)
    told = [event for event in kube.events if event["reason"] == "ClaimPending"]
    assert [(event["regarding"]["kind"], event["metadata"]["namespace"]) for event in told] == [("ResourceClaim", "ml")]
    (waiting,) = kube.live(GPU_SHARES, "a")["status"]["claims"]["unplaced"]
    assert waiting["claim"] == "ml/x"
    assert waiting["message"] == told[0]["note"] == 'no GPU of GpuShare "a" is offered: its conditions say why'


async def test_a_template_that_a_tenant_keeps_does_not_keep_the_share(
    kube: FakeKube, reconciler: Reconciler, settings: OperatorSettings
) -> None:
    """A template with our label and any name, or with a finalizer of the tenant's: neither is waited for."""
    await settle(kube, reconciler)
    labels = {"gpushare.dev/share": "a"}
    kube.put(CLAIM_TEMPLATES, {"metadata": {"name": "mine", "namespace": "ml", "labels": labels}})
    going = {"deletionTimestamp": "2026-03-01T00:00:00Z", "finalizers": ["tenant.example/kept"]}
    kept = kube.live(CLAIM_TEMPLATES, "small.a")
    kube.put(CLAIM_TEMPLATES, {**kept, "metadata": kept["metadata"] | {"name": "kept.a"} | going})
    live = kube.live(GPU_SHARES, "a")
    kube.put(GPU_SHARES, {**live, "metadata": {**live["metadata"], "deletionTimestamp": "2026-03-01T00:00:00Z"}})
    kube.writes.clear()
    await end(kube, settings)
    assert not kube.has(GPU_SHARES, "a")
    assert kube.has(CLAIM_TEMPLATES, "mine")
    assert "delete deviceclasses/a.gpushare.dev" in kube.writes
