"""The certificate loop against a small API server: both Secrets, both caBundles, races, and no idle writes."""

import asyncio
import base64
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus

import pytest

from gpushare.controller.webhook_certificates import keep as certificates
from gpushare.controller.webhook_certificates.keep import bundle_patch, reconcile
from gpushare.kube.client import MUTATING_WEBHOOKS, SECRETS, VALIDATING_WEBHOOKS, KubeError, Object
from gpushare.kube.events.event import Event
from tests.unit.fake_kube import FORBIDDEN, FakeKube

NOW = datetime(2026, 11, 21, tzinfo=UTC)


@dataclass(frozen=True)
class Settings:
    namespace: str = "gpushare-system"
    webhook_secret: str = "tls"
    authority_secret: str = "ca"
    webhook_service: str = "gpushare-webhook"
    webhook_configuration: str = "gpushare"


class Recorded:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def record(self, event: Event) -> None:
        self.events.append(event)


def configuration(*names: str) -> Object:
    return {
        "metadata": {"name": "gpushare"},
        "webhooks": [{"name": name, "clientConfig": {"service": {"name": "gpushare-webhook"}}} for name in names],
    }


CONFIGURATIONS = {MUTATING_WEBHOOKS: configuration("pods"), VALIDATING_WEBHOOKS: configuration("pods", "shares")}


@pytest.fixture
def kube() -> FakeKube:
    """The cluster as the chart leaves it: both configurations without a bundle, and no Secret."""
    kube = FakeKube()
    for resource, obj in CONFIGURATIONS.items():
        kube.put(resource, obj)
    return kube


def bundles(kube: FakeKube) -> set[str | None]:
    return {
        webhook["clientConfig"].get("caBundle")
        for resource in CONFIGURATIONS
        for configuration in kube.all(resource)
        for webhook in configuration["webhooks"]
    }


def data(kube: FakeKube, secret: str) -> dict[str, str]:
    stored: dict[str, str] = kube.live(SECRETS, secret)["data"]
    return stored


def tamper(kube: FakeKube, secret: str, data: dict[str, str]) -> None:
    """Somebody else writes the Secret's data."""
    kube.put(SECRETS, {**kube.live(SECRETS, secret), "data": data})


async def once(kube: FakeKube) -> None:
    await reconcile(kube, Settings(), NOW)  # type: ignore[arg-type]


async def test_a_first_pass_makes_both_secrets_and_tells_both_configurations(kube: FakeKube) -> None:
    await once(kube)
    assert kube.live(SECRETS, "ca")["type"] == "Opaque"
    assert set(data(kube, "ca")) == {"ca.crt", "ca.key"}
    assert kube.live(SECRETS, "tls")["type"] == "kubernetes.io/tls"
    assert set(data(kube, "tls")) == {"ca.crt", "tls.crt", "tls.key"}
    assert bundles(kube) == {data(kube, "ca")["ca.crt"]} == {data(kube, "tls")["ca.crt"]}
    assert kube.writes == [
        "create secrets/ca",
        "patch mutatingwebhookconfigurations/gpushare",
        "patch validatingwebhookconfigurations/gpushare",
        "create secrets/tls",
    ]


async def test_a_second_pass_writes_nothing(kube: FakeKube) -> None:
    await once(kube)
    kube.writes.clear()
    await once(kube)
    assert kube.writes == []


async def test_only_the_configuration_that_lost_its_bundle_is_written(kube: FakeKube) -> None:
    await once(kube)
    kube.writes.clear()
    changed = kube.live(VALIDATING_WEBHOOKS, "gpushare")
    del changed["webhooks"][1]["clientConfig"]["caBundle"]
    kube.put(VALIDATING_WEBHOOKS, changed)
    await once(kube)
    assert kube.writes == ["patch validatingwebhookconfigurations/gpushare"]
    assert len(bundles(kube)) == 1


async def test_a_damaged_secret_is_patched_in_place(kube: FakeKube) -> None:
    await once(kube)
    kube.writes.clear()
    tamper(kube, "tls", data(kube, "tls") | {"tls.crt": "no base64!"})
    await once(kube)
    assert base64.b64decode(data(kube, "tls")["tls.crt"]).startswith(b"-----BEGIN CERTIFICATE-----")
    assert kube.writes == ["patch secrets/tls"]


async def test_an_authority_key_that_the_webhook_could_read_is_replaced(kube: FakeKube) -> None:
    await once(kube)
    exposed = data(kube, "ca")["ca.key"]
    kube.remove(SECRETS, "ca")
    tamper(kube, "tls", data(kube, "tls") | {"ca.key": exposed})
    served = data(kube, "tls")["tls.crt"]
    await once(kube)
    assert data(kube, "ca")["ca.key"] != exposed
    assert set(data(kube, "tls")) == {"ca.crt", "tls.crt", "tls.key"}
    assert data(kube, "tls")["tls.crt"] == served
    assert bundles(kube) == {data(kube, "ca")["ca.crt"]}


@pytest.mark.parametrize("lost", [{}, {"ca.crt": "", "ca.key": ""}])
async def test_a_lost_race_over_the_authority_leaves_all_else_alone(kube: FakeKube, lost: dict[str, str]) -> None:
    await once(kube)
    if lost:
        tamper(kube, "ca", lost)
    else:
        kube.remove(SECRETS, "ca")
    replicas = [kube.connection(), kube.connection()]
    results = await asyncio.gather(*(once(replica) for replica in replicas), return_exceptions=True)
    (loser,) = (replica for replica, result in zip(replicas, results, strict=True) if result is not None)
    (error,) = (result for result in results if isinstance(result, KubeError))
    assert error.status == HTTPStatus.CONFLICT
    assert loser.writes == ["patch secrets/ca" if lost else "create secrets/ca"], "and nothing after it"


async def test_a_chart_without_configurations_is_no_error(kube: FakeKube) -> None:
    for resource in CONFIGURATIONS:
        kube.remove(resource, "gpushare")
    await once(kube)
    assert kube.writes == ["create secrets/ca", "create secrets/tls"]


def test_a_patch_is_guarded_by_the_webhooks_name() -> None:
    assert bundle_patch(configuration("pods"), b"CA") == [
        {"op": "test", "path": "/webhooks/0/name", "value": "pods"},
        {"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": "Q0E="},
    ]
    assert bundle_patch({}, b"CA") == []


async def test_a_bundle_that_is_taken_away_is_back_at_once(kube: FakeKube) -> None:
    task = asyncio.create_task(certificates.run(kube, Settings(), Recorded(), debounce_seconds=0.01))  # type: ignore[arg-type]
    try:
        await kube.until(lambda: None not in bundles(kube))
        await kube.followed(*CONFIGURATIONS, SECRETS)
        kube.put(MUTATING_WEBHOOKS, configuration("pods"))
        assert None in bundles(kube)
        await kube.until(lambda: None not in bundles(kube))
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_it_ends_when_it_is_cancelled_at_whatever_step_a_change_arrives(kube: FakeKube) -> None:
    """The Lease may be lost at any step: the keeper must not write on."""
    for steps in range(12):
        task = asyncio.create_task(certificates.run(kube, Settings(), Recorded(), debounce_seconds=0.0))  # type: ignore[arg-type]
        await kube.followed(*CONFIGURATIONS, SECRETS)
        for _ in range(100):
            await asyncio.sleep(0)
        kube.put(MUTATING_WEBHOOKS, configuration(f"pods-{steps}"))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        done, _ = await asyncio.wait([task], timeout=5)
        assert done, f"it runs on after a cancellation {steps} steps after the change"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (KubeError(403, "Forbidden", 'secrets "tls" is forbidden: exceeded quota: small'), "raise that ResourceQuota"),
        (FORBIDDEN, "apply the chart of the operator's own version"),
        (KubeError(409, "Conflict", "the object has been modified"), ""),
        (KubeError(503, "ServiceUnavailable", "busy"), ""),
    ],
)
async def test_a_refused_certificate_is_told_with_who_is_to_mend_it(
    kube: FakeKube, error: KubeError, told: str
) -> None:
    recorder = Recorded()
    kube.fail("create secrets", error)
    task = asyncio.create_task(certificates.run(kube, Settings(), recorder))  # type: ignore[arg-type]
    try:
        await kube.until(lambda: "create secrets/ca" in kube.requests)
        await kube.followed(*CONFIGURATIONS, SECRETS)
        assert [(event.regarding["kind"], event.regarding["name"], event.reason) for event in recorder.events] == (
            [("Secret", "tls", "WriteRefused")] if told else []
        )
        assert all(told in event.note and str(error) in event.note for event in recorder.events)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
