"""The HTTP shell: AdmissionReview in and out, bounds, and what happens when the API server does not answer."""

import asyncio
import base64
import json
import logging
from collections.abc import Collection
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from gpushare.admission import app as shell
from gpushare.admission.metrics import AdmissionMeters
from gpushare.api.gpushare import GpuShare
from gpushare.kube.client import KubeError

SHARE = GpuShare.model_validate(
    {"metadata": {"name": "inference"}, "spec": {"clients": {"perGpu": 8, "memory": {"default": "8Gi"}}}}
)
POD = {"spec": {"containers": [{"name": "app", "resources": {"limits": {"gpushare.dev/inference": "1"}}}]}}
SECRET = "hunter2"


class FakeSources:
    def __init__(self, error: Exception | None = None, seconds: float = 0) -> None:
        self.error, self.seconds = error, seconds

    async def shares(self, names: Collection[str]) -> dict[str, GpuShare]:
        await asyncio.sleep(self.seconds)
        if self.error:
            raise self.error
        return {name: SHARE for name in names if name == SHARE.name}

    def share_names(self) -> list[str]:
        return [SHARE.name]

    async def namespace_labels(self, name: str) -> dict[str, str]:
        return {}


def client(sources: FakeSources | None = None, registry: CollectorRegistry | None = None) -> httpx.AsyncClient:
    meters = AdmissionMeters(registry or CollectorRegistry())
    transport = httpx.ASGITransport(shell.create_app(sources or FakeSources(), "gpushare-system", meters))
    return httpx.AsyncClient(transport=transport, base_url="https://webhook")


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


async def post(path: str, body: dict[str, Any], sources: FakeSources | None = None) -> dict[str, Any]:
    async with client(sources) as http:
        answer = await http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    assert {key: answer.json()[key] for key in ("apiVersion", "kind")} == {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
    }
    response: dict[str, Any] = answer.json()["response"]
    assert response["uid"] == "u-1"
    return response


async def test_a_pod_is_answered_with_a_json_patch() -> None:
    response = await post("/mutate-pods", review(POD, dryRun=True))
    assert response["allowed"]
    assert response["patchType"] == "JSONPatch"
    operations = json.loads(base64.b64decode(response["patch"]))
    assert [(one["op"], one["path"]) for one in operations] == [
        ("add", "/spec/containers/0/env"),
        ("add", "/spec/containers/0/volumeMounts"),
        ("add", "/spec/containers/0/lifecycle"),
        ("add", "/spec/containers/0/securityContext"),
        ("add", "/spec/volumes"),
    ]


async def test_a_refusal_is_forbidden_with_its_reason() -> None:
    typo = json.loads(json.dumps(POD).replace("inference", "inferense"))
    response = await post("/mutate-pods", review(typo))
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


async def test_a_pod_that_bypassed_the_mutation_is_refused() -> None:
    response = await post("/validate-pods", review(POD))
    assert not response["allowed"]
    assert "is missing: the pod was changed after gpushare's mutating webhook" in response["status"]["message"]


async def test_an_update_of_a_pod_is_allowed_with_a_warning() -> None:
    new = {**POD, "metadata": {"annotations": {"gpushare.dev/memory": "1Gi"}}}
    response = await post("/validate-pods", review(new, "UPDATE", oldObject=POD))
    assert response == {
        "uid": "u-1",
        "allowed": True,
        "warnings": [
            "metadata.annotations[gpushare.dev/memory]: has no effect once the pod is created; create it again"
        ],
    }


@pytest.mark.parametrize("path", ["/mutate-pods", "/validate-pods", "/validate-gpushares"])
async def test_a_deletion_is_never_held_up(path: str) -> None:
    assert await post(path, review({}, "DELETE", object=None)) == {"uid": "u-1", "allowed": True}


async def test_a_share_is_validated() -> None:
    spec = {"clients": {"perGpu": 8, "memory": {"default": "100Mi"}}}
    response = await post("/validate-gpushares", review({"metadata": {"name": "x"}, "spec": spec}, kind="GpuShare"))
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
async def test_what_is_no_review_is_a_bad_request(body: bytes) -> None:
    async with client() as http:
        answer = await http.post("/mutate-pods", content=body)
    assert (answer.status_code, answer.text) == (400, "the body is not an AdmissionReview of admission.k8s.io/v1")


async def test_a_body_that_is_too_large_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell, "BODY_BYTES", 1000)
    async with client() as http:
        answer = await http.post("/mutate-pods", content=b"x" * 1001)
    assert (answer.status_code, answer.text) == (413, "the body exceeds 1000 bytes")


@pytest.mark.parametrize(
    "sources",
    [FakeSources(KubeError(500, "InternalError", "etcd")), FakeSources(OSError("refused")), FakeSources(seconds=9)],
)
async def test_an_api_server_that_does_not_answer_is_no_verdict(
    sources: FakeSources, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell, "REVIEW_SECONDS", 0.2)
    async with client(sources) as http:
        answer = await http.post("/mutate-pods", json=review(POD))
    assert answer.status_code == 503


async def test_every_review_is_counted_by_its_outcome_and_refusals_by_their_reasons() -> None:
    registry = CollectorRegistry()
    bad = {**POD, "metadata": {"annotations": {"gpushare.dev/threads": "all", "gpushare.dev/memory": "much"}}}
    async with client(registry=registry) as http:
        for body in (POD, POD, bad):
            assert (await http.post("/mutate-pods", json=review(body))).status_code == 200
        assert (await http.post("/validate-gpushares", content=b"no review")).status_code == 400

    def told(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"gpushare_admission_{name}", labels)

    assert told("reviews_total", endpoint="mutate-pods", result="admitted") == 2
    assert told("reviews_total", endpoint="mutate-pods", result="refused") == 1
    assert told("reviews_total", endpoint="validate-gpushares", result="failed") == 1
    assert told("refusals_total", endpoint="mutate-pods", reason="Annotation") == 1, "once, though two are wrong"
    assert told("refusals_total", endpoint="mutate-pods", reason="Slot") == 0
    assert told("review_duration_seconds_count", endpoint="mutate-pods") == 3


async def test_only_posts_are_reviews() -> None:
    async with client() as http:
        assert (await http.get("/mutate-pods")).status_code == 405
        assert (await http.post("/other")).status_code == 404


async def test_a_tenants_values_are_never_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    variables = [{"name": "PASSWORD", "value": SECRET}, {"name": "GPUSHARE_X", "value": SECRET}]
    container = {**POD["spec"]["containers"][0], "env": variables}
    response = await post("/mutate-pods", review({"spec": {"containers": [container]}}))
    assert not response["allowed"]
    assert SECRET not in caplog.text


async def test_probes_tell_life_from_readiness() -> None:
    for ready, status in ((True, 200), (False, 503)):
        transport = httpx.ASGITransport(shell.create_probes(lambda ready=ready: ready))  # type: ignore[misc]
        async with httpx.AsyncClient(transport=transport, base_url="http://webhook") as http:
            assert (await http.get("/healthz")).status_code == 200
            assert (await http.get("/readyz")).status_code == status
