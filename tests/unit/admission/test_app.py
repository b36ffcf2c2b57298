"""The HTTP shell: AdmissionReview in and out, bounds, and what happens when the API server does not answer."""

import asyncio
import base64
import json
import logging
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from prometheus_client import CollectorRegistry

from gpushare.admission.app import ReviewLimits, create_app
from gpushare.admission.metrics import AdmissionMeters
from gpushare.api.gpushare import GpuShare
from gpushare.http.server import serve
from gpushare.kube.client import KubeError

SHARE = GpuShare.model_validate(
    {"metadata": {"name": "inference"}, "spec": {"clients": {"perGpu": 8, "memory": {"default": "8Gi"}}}}
)
POD = {"spec": {"containers": [{"name": "app", "resources": {"limits": {"gpushare.dev/inference": "1"}}}]}}
SECRET = "hunter2"


class FakeSources:
    def __init__(self, error: Exception | None = None, hangs: bool = False) -> None:
        self.error, self.hangs = error, hangs

    async def shares(self, names: Collection[str]) -> dict[str, GpuShare]:
        if self.hangs:
            await asyncio.Event().wait()
        if self.error:
            raise self.error
        return {name: SHARE for name in names if name == SHARE.name}

    def share_names(self) -> list[str]:
        return [SHARE.name]

    async def namespace_labels(self, name: str) -> dict[str, str]:
        return {}


class Webhook:
    """A webhook that serves on a port of its own for as long as a test has an open connection to it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.registry = CollectorRegistry()

    @asynccontextmanager
    async def client(
        self, sources: FakeSources | None = None, limits: ReviewLimits | None = None
    ) -> AsyncIterator[aiohttp.ClientSession]:
        app = create_app(sources or FakeSources(), "gpushare-system", AdmissionMeters(self.registry), limits)
        url = f"http://127.0.0.1:{self._port}"
        async with serve(app, self._port), aiohttp.ClientSession(url, trust_env=False) as http:
            yield http

    async def post(self, path: str, body: dict[str, Any], sources: FakeSources | None = None) -> dict[str, Any]:
        """The response to the review `body`."""
        async with self.client(sources) as http, http.post(path, json=body) as answer:
            assert answer.status == 200, await answer.text()
            reviewed = await answer.json()
        assert (reviewed["apiVersion"], reviewed["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
        response: dict[str, Any] = reviewed["response"]
        assert response["uid"] == "u-1"
        return response


@pytest.fixture
def webhook(free_port: int) -> Webhook:
    return Webhook(free_port)


def review(body: dict[str, Any], operation: str = "CREATE", kind: str = "Pod", **request: Any) -> dict[str, Any]:
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "u-1",
            "kind": {"kind": kind},
            "namespace": "shop",
            "operation": operation,
            "object": body,
            **request,
        },
    }


async def test_a_pod_is_answered_with_a_json_patch(webhook: Webhook) -> None:
    response = await webhook.post("/mutate-pods", review(POD, dryRun=True))
    assert response["allowed"]
    assert response["patchType"] == "JSONPatch"
    operations = json.loads(base64.b64decode(response["patch"]))
    assert [(one["op"], one["path"]) for one in operations] == [
        ("add", "/spec/containers/0/env"),
        ("add", "/spec/containers/0/volumeMounts"),
        ("add", "/spec/containers/0/lifecycle"),
        ("add", "/spec/volumes"),
    ]


async def test_a_refusal_is_forbidden_with_its_reason(webhook: Webhook) -> None:
    typo = json.loads(json.dumps(POD).replace("inference", "inferense"))
    response = await webhook.post("/mutate-pods", review(typo))
    assert response == {
        "uid": "u-1",
        "allowed": False,
        "status": {
            "status": "Failure",
            "code": 403,
            "reason": "Forbidden",
            "message": "spec.containers[0].resources.limits[gpushare.dev/inferense]:"
            ' no GpuShare "inferense"; did you mean "inference"?',
        },
    }


async def test_a_pod_that_bypassed_the_mutation_is_refused(webhook: Webhook) -> None:
    response = await webhook.post("/validate-pods", review(POD))
    assert not response["allowed"]
    assert "is missing: the pod was changed after gpushare's mutating webhook" in response["status"]["message"]


async def test_an_update_of_a_pod_is_allowed_with_a_warning(webhook: Webhook) -> None:
    new = {**POD, "metadata": {"annotations": {"gpushare.dev/memory": "1Gi"}}}
    response = await webhook.post("/validate-pods", review(new, "UPDATE", oldObject=POD))
    assert response == {
        "uid": "u-1",
        "allowed": True,
        "warnings": [
            "metadata.annotations[gpushare.dev/memory]: has no effect once the pod is created; create it again"
        ],
    }


@pytest.mark.parametrize("path", ["/mutate-pods", "/validate-pods", "/validate-gpushares"])
async def test_a_deletion_is_never_held_up(webhook: Webhook, path: str) -> None:
    assert await webhook.post(path, review({}, "DELETE", object=None)) == {"uid": "u-1", "allowed": True}


async def test_a_share_is_validated(webhook: Webhook) -> None:
    spec = {"clients": {"perGpu": 8, "memory": {"default": "100Mi"}}}
    share = {"metadata": {"name": "x"}, "spec": spec}
    response = await webhook.post("/validate-gpushares", review(share, kind="GpuShare"))
    assert response["status"]["message"] == (
        'spec.clients.memory.default: "100Mi" is below the 520Mi that one CUDA context takes at 100 percent of the'
        " threads (spec.clients.threads.max); write at least 520Mi, or lower threads.max"
    )


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff",
        b'{"apiVersion": "admission.k8s.io/v1", "request": null}',
        json.dumps({**review(POD), "apiVersion": "admission.k8s.io/v1beta1"}).encode(),
        json.dumps(review(POD, object=None)).encode(),
        json.dumps(review(POD, "UPDATE")).encode(),
    ],
)
async def test_what_is_no_review_is_a_bad_request(webhook: Webhook, body: bytes) -> None:
    async with webhook.client() as http, http.post("/mutate-pods", data=body) as answer:
        text = "the body is not an AdmissionReview of admission.k8s.io/v1"
        assert (answer.status, await answer.text()) == (400, text)


async def test_a_body_that_is_too_large_is_refused(webhook: Webhook) -> None:
    async with (
        webhook.client(limits=ReviewLimits(body_bytes=1000)) as http,
        http.post("/mutate-pods", data=b"x" * 1001) as answer,
    ):
        assert (answer.status, await answer.text()) == (413, "the body exceeds 1000 bytes")


async def test_a_body_that_never_ends_is_given_up(webhook: Webhook) -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    async with (
        webhook.client(limits=ReviewLimits(seconds=0.2)) as http,
        http.post("/mutate-pods", data=body()) as answer,
    ):
        assert answer.status == 503


@pytest.mark.parametrize(
    "sources",
    [FakeSources(KubeError(500, "InternalError", "etcd")), FakeSources(OSError("refused")), FakeSources(hangs=True)],
)
async def test_a_review_fails_when_the_api_server_does_not_answer(webhook: Webhook, sources: FakeSources) -> None:
    async with (
        webhook.client(sources, ReviewLimits(seconds=0.2)) as http,
        http.post("/mutate-pods", json=review(POD)) as answer,
    ):
        assert answer.status == 503


async def test_every_review_is_counted_by_its_outcome_and_refusals_by_their_reasons(webhook: Webhook) -> None:
    bad = {**POD, "metadata": {"annotations": {"gpushare.dev/threads": "all", "gpushare.dev/memory": "much"}}}
    async with webhook.client() as http:
        for body in (POD, POD, bad):
            assert (await http.post("/mutate-pods", json=review(body))).status == 200
        assert (await http.post("/validate-gpushares", data=b"no review")).status == 400

    def value(name: str, **labels: str) -> float | None:
        return webhook.registry.get_sample_value(f"gpushare_admission_{name}", labels)

    assert value("reviews_total", endpoint="mutate-pods", result="admitted") == 2
    assert value("reviews_total", endpoint="mutate-pods", result="refused") == 1
    assert value("reviews_total", endpoint="validate-gpushares", result="failed") == 1
    assert value("refusals_total", endpoint="mutate-pods", reason="Annotation") == 1, "once, though two are wrong"
    assert value("refusals_total", endpoint="mutate-pods", reason="Slot") == 0
    assert value("review_duration_seconds_count", endpoint="mutate-pods") == 3


async def test_only_posts_are_reviews(webhook: Webhook) -> None:
    async with webhook.client() as http:
        assert (await http.get("/mutate-pods")).status == 405
        assert (await http.post("/other")).status == 404


async def test_a_tenants_values_are_never_logged(webhook: Webhook, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    variables = [{"name": "PASSWORD", "value": SECRET}, {"name": "GPUSHARE_X", "value": SECRET}]
    container = {**POD["spec"]["containers"][0], "env": variables}
    response = await webhook.post("/mutate-pods", review({"spec": {"containers": [container]}}))
    assert not response["allowed"]
    assert SECRET not in caplog.text
