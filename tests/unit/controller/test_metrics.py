"""What the operator's metrics tell: the shares as planned, and how rounds and writes went."""

import pytest
from prometheus_client import CollectorRegistry

from gpushare.controller.metrics import FAMILIES, FleetSnapshot, OperatorMeters, samples
from gpushare.controller.reconcile import Reconciler
from gpushare.controller.settings import OperatorSettings
from gpushare.kube.client import GPU_SHARES, RESOURCE_CLAIMS
from tests.unit.controller.claims.test_views import CLAIM
from tests.unit.controller.listing import relist
from tests.unit.fake_kube import FORBIDDEN, FakeKube


def told(snapshot: FleetSnapshot) -> dict[tuple[str, ...], float]:
    series = [
        ((sample.family.name.removeprefix("gpushare_"), *sample.labels), float(sample.value))
        for sample in samples(snapshot)
    ]
    assert len(series) == len(dict(series)), "a series is told twice: Prometheus refuses the whole scrape"
    assert {sample.family for sample in samples(snapshot)} <= set(FAMILIES)
    return dict(series)


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
async def reconciler(kube: FakeKube, settings: OperatorSettings, registry: CollectorRegistry) -> Reconciler:
    reconciler = Reconciler(kube, settings, OperatorMeters(registry))
    await relist(kube, reconciler)
    return reconciler


async def test_a_share_is_told_as_its_status_is(kube: FakeKube, reconciler: Reconciler) -> None:
    await reconciler.once()
    await reconciler.once()
    series = told(FleetSnapshot(True, reconciler.reports))
    status = kube.live(GPU_SHARES, "a")["status"]
    assert series["share_gpus_matching", "a"] == status["gpus"]["matching"] == 1
    assert series["share_gpus_assigned", "a"] == status["gpus"]["assigned"] == 1
    assert series["share_gpus_ready", "a"] == status["gpus"].get("ready", 0) == 0
    assert series["share_condition", "a", "GpusAssigned"] == 1
    assert series["share_condition", "a", "Ready"] == 0
    assert series["share_reason", "a", "DaemonsStarting"] == 1
    assert series["operator_leader",] == 1


async def test_claims_are_counted_of_shares_that_are_delivered_by_them_alone(
    kube: FakeKube, reconciler: Reconciler
) -> None:
    await reconciler.once()
    assert ("share_claims_allocated", "a") not in told(FleetSnapshot(True, reconciler.reports))
    share = kube.live(GPU_SHARES, "a")
    kube.put(GPU_SHARES, {**share, "spec": {**share["spec"], "delivery": "ResourceClaim"}})
    kube.put(RESOURCE_CLAIMS, CLAIM)
    await relist(kube, reconciler)
    await reconciler.once()
    await kube.followed(RESOURCE_CLAIMS)
    await reconciler.once()
    await reconciler.cache.claims.close()
    series = told(FleetSnapshot(True, reconciler.reports))
    assert (series["share_claims_allocated", "a"], series["share_claims_pending", "a"]) == (0, 1)


async def test_gpus_that_cannot_be_taken_are_counted_by_reason(kube: FakeKube, reconciler: Reconciler) -> None:
    share = kube.live(GPU_SHARES, "a")
    kube.put(GPU_SHARES, {**share, "spec": {**share["spec"], "gpus": {"products": ["NVIDIA B200"]}}})
    clients = {"perGpu": 60, "processes": 1, "memory": {"default": "16Gi"}}
    kube.put(
        GPU_SHARES,
        {"metadata": {"name": "b", "creationTimestamp": "2026-01-02T00:00:00Z"}, "spec": {"clients": clients}},
    )
    await relist(kube, reconciler)
    await reconciler.once()
    series = told(FleetSnapshot(True, reconciler.reports))
    assert series["share_gpus_unavailable", "b", "ClientCeiling"] == 1
    assert series["share_gpus_assigned", "a"] == 0


async def test_a_share_that_goes_takes_its_series_with_it(kube: FakeKube, reconciler: Reconciler) -> None:
    await reconciler.once()
    kube.remove(GPU_SHARES, "a")
    await relist(kube, reconciler)
    await reconciler.once()
    assert told(FleetSnapshot(True, reconciler.reports)) == {("operator_leader",): 1}


def test_a_replica_that_waits_tells_only_that_it_does_not_lead() -> None:
    assert told(FleetSnapshot(False, {})) == {("operator_leader",): 0}


async def test_rounds_writes_and_refusals_are_counted(
    kube: FakeKube, reconciler: Reconciler, registry: CollectorRegistry
) -> None:
    kube.fail("patch nodes/n1", FORBIDDEN)
    await reconciler.once()
    await reconciler.once()

    def count(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"gpushare_{name}", labels)

    assert count("reconcile_duration_seconds_count") == 2
    assert count("writes_total", resource="gpushares/status", verb="apply", result="ok") == 1
    assert count("writes_total", resource="nodes", verb="merge", result="failed") == 1, "the second waits its turn"
    assert count("reconcile_errors_total") == 0


async def test_a_fleet_that_cannot_be_read_is_an_error(
    kube: FakeKube, reconciler: Reconciler, registry: CollectorRegistry
) -> None:
    share = kube.live(GPU_SHARES, "a")
    kube.put(GPU_SHARES, {**share, "spec": {**share["spec"], "enforcement": "FromTheFuture"}})
    await relist(kube, reconciler)
    await reconciler.once()
    assert registry.get_sample_value("gpushare_reconcile_errors_total") == 1


def test_of_each_agent_it_is_told_whether_it_reports() -> None:
    series = told(FleetSnapshot(True, {}, {"n1": True, "n2": False}))
    assert (series["agent_reporting", "n1"], series["agent_reporting", "n2"]) == (1, 0)
