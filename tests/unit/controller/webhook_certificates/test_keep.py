"""The certificate loop against a small API server: both Secrets, both caBundles, races, and no idle writes."""

import asyncio
import base64
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from gpushare.controller.webhook_certificates import keep as certificates
from gpushare.controller.webhook_certificates.keep import bundle_patch, reconcile
from gpushare.kube.client import MUTATING_WEBHOOKS, SECRETS, VALIDATING_WEBHOOKS, KubeError, Object, Resource

NOW = datetime(2026, 11, 21, tzinfo=UTC)


@dataclass(frozen=True)
class Settings:
    namespace: str = "gpushare-system"
    webhook_secret: str = "tls"
    authority_secret: str = "ca"
    webhook_service: str = "gpushare-webhook"
    webhook_configuration: str = "gpushare"


def configuration(*names: str) -> Object:
    return {"webhooks": [{"name": name, "clientConfig": {"service": {"name": "gpushare-webhook"}}} for name in names]}


class FakeKube:
    """Holds Secrets and two configurations; applies what the loop writes, and tells what it was."""

    def __init__(self) -> None:
        self.secrets: dict[str, Object] = {}
        self.configurations: dict[Resource, Object] = {
            MUTATING_WEBHOOKS: configuration("pods"),
            VALIDATING_WEBHOOKS: configuration("pods", "shares"),
        }
        self.writes: list[str] = []
        self.conflict = False
        self.events: asyncio.Queue[Object] = asyncio.Queue()

    async def find(self, resource: Resource, name: str, namespace: str | None = None) -> Object | None:
        return self.secrets.get(name) if resource is SECRETS else self.configurations.get(resource)

    async def create(self, resource: Resource, body: Object, namespace: str | None = None) -> Object:
        if self.conflict:
            raise KubeError(409, "AlreadyExists", "there is one")
        name = body["metadata"]["name"]
        self.writes.append(f"create {resource.plural} {name}")
        self.secrets[name] = {**body, "metadata": {**body["metadata"], "resourceVersion": "1"}}
        return self.secrets[name]

    async def patch(
        self,
        resource: Resource,
        name: str,
        body: Any,
        *,
        manager: str,
        kind: str = "merge",
        namespace: str | None = None,
    ) -> Object:
        if resource is SECRETS:
            secret = self.secrets[name]
            if self.conflict or body["metadata"]["resourceVersion"] != secret["metadata"]["resourceVersion"]:
                raise KubeError(409, "Conflict", "somebody was faster")
            self.writes.append(f"patch {resource.plural} {name}")
            merged = secret["data"] | body["data"]
            secret["data"] = {key: value for key, value in merged.items() if value is not None}
            return secret
        self.writes.append(f"patch {resource.plural}")
        target = self.configurations[resource]
        for operation in body:
            _, _, index, *rest = operation["path"].split("/")
            webhook = target["webhooks"][int(index)]
            if operation["op"] == "test":
                assert webhook["name"] == operation["value"]
            else:
                assert rest == ["clientConfig", "caBundle"]
                webhook["clientConfig"]["caBundle"] = operation["value"]
        return target

    async def list_all(self, resource: Resource, namespace: str | None = None, **selectors: str) -> Object:
        return {"metadata": {"resourceVersion": "1"}, "items": []}

    async def pages(
        self, resource: Resource, namespace: str | None = None, **selectors: str
    ) -> AsyncIterator[tuple[list[Object], str]]:
        answer = await self.list_all(resource, namespace, **selectors)
        yield answer["items"], answer["metadata"]["resourceVersion"]

    async def watch(self, resource: Resource, namespace: str | None, version: str, selectors: dict[str, str]) -> Any:
        if resource is not MUTATING_WEBHOOKS:
            await asyncio.Event().wait()
        while True:
            yield await self.events.get()

    def bundles(self) -> set[str | None]:
        return {
            webhook["clientConfig"].get("caBundle")
            for one in self.configurations.values()
            for webhook in one["webhooks"]
        }


async def once(kube: FakeKube) -> None:
    await reconcile(kube, Settings(), NOW)  # type: ignore[arg-type]


async def test_a_first_pass_makes_both_secrets_and_tells_both_configurations_in_between() -> None:
    kube = FakeKube()
    await once(kube)
    assert kube.secrets["ca"]["type"] == "Opaque"
    assert set(kube.secrets["ca"]["data"]) == {"ca.crt", "ca.key"}
    assert kube.secrets["tls"]["type"] == "kubernetes.io/tls"
    assert set(kube.secrets["tls"]["data"]) == {"ca.crt", "tls.crt", "tls.key"}
    assert kube.bundles() == {kube.secrets["ca"]["data"]["ca.crt"]} == {kube.secrets["tls"]["data"]["ca.crt"]}
    assert kube.writes == [
        "create secrets ca",
        "patch mutatingwebhookconfigurations",
        "patch validatingwebhookconfigurations",
        "create secrets tls",
    ]


async def test_a_second_pass_writes_nothing() -> None:
    kube = FakeKube()
    await once(kube)
    kube.writes.clear()
    await once(kube)
    assert kube.writes == []


async def test_only_the_configuration_that_lost_its_bundle_is_written() -> None:
    kube = FakeKube()
    await once(kube)
    kube.writes.clear()
    del kube.configurations[VALIDATING_WEBHOOKS]["webhooks"][1]["clientConfig"]["caBundle"]
    await once(kube)
    assert kube.writes == ["patch validatingwebhookconfigurations"]
    assert len(kube.bundles()) == 1


async def test_a_damaged_secret_is_patched_in_place() -> None:
    kube = FakeKube()
    await once(kube)
    kube.writes.clear()
    kube.secrets["tls"]["data"]["tls.crt"] = "no base64!"
    await once(kube)
    assert base64.b64decode(kube.secrets["tls"]["data"]["tls.crt"]).startswith(b"-----BEGIN CERTIFICATE-----")
    assert kube.writes == ["patch secrets tls"]


async def test_an_authority_key_that_the_webhook_could_read_is_replaced_and_taken_away() -> None:
    kube = FakeKube()
    await once(kube)
    exposed = kube.secrets.pop("ca")["data"]["ca.key"]
    kube.secrets["tls"]["data"]["ca.key"] = exposed
    served = kube.secrets["tls"]["data"]["tls.crt"]
    await once(kube)
    assert kube.secrets["ca"]["data"]["ca.key"] != exposed
    assert set(kube.secrets["tls"]["data"]) == {"ca.crt", "tls.crt", "tls.key"}
    assert kube.secrets["tls"]["data"]["tls.crt"] == served
    assert kube.bundles() == {kube.secrets["ca"]["data"]["ca.crt"]}


@pytest.mark.parametrize("lost", [{}, {"ca.crt": "", "ca.key": ""}])
async def test_a_lost_race_over_the_authority_leaves_all_else_alone(lost: dict[str, str]) -> None:
    kube = FakeKube()
    await once(kube)
    if lost:
        kube.secrets["ca"]["data"] = lost
    else:
        del kube.secrets["ca"]
    kube.writes.clear()
    kube.conflict = True
    with pytest.raises(KubeError):
        await once(kube)
    assert kube.writes == []


async def test_a_chart_without_configurations_is_no_error() -> None:
    kube = FakeKube()
    kube.configurations = {}
    await once(kube)
    assert kube.writes == ["create secrets ca", "create secrets tls"]


def test_a_patch_is_guarded_by_the_webhooks_name() -> None:
    assert bundle_patch(configuration("pods"), b"CA") == [
        {"op": "test", "path": "/webhooks/0/name", "value": "pods"},
        {"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": "Q0E="},
    ]
    assert bundle_patch({}, b"CA") == []


async def test_a_bundle_that_is_taken_away_is_back_at_once() -> None:
    kube = FakeKube()
    task = asyncio.create_task(certificates.run(kube, Settings(), debounce_seconds=0.01))  # type: ignore[arg-type]
    try:
        await _until(lambda: None not in kube.bundles())
        kube.configurations[MUTATING_WEBHOOKS] = configuration("pods")
        changed = {"metadata": {"name": "gpushare", "resourceVersion": "2"}}
        kube.events.put_nowait({"type": "MODIFIED", "object": changed})
        await _until(lambda: None not in kube.bundles())
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _until(holds: Any) -> None:
    async with asyncio.timeout(5):
        while not holds():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.01)
