"""The HTTP shell: AdmissionReview in and out, bounds, and what happens when the API server does not answer."""

import asyncio
import base64
import gzip
import json
import logging
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from prometheus_client import CollectorRegistry

from gpushare.api.gpushare import GpuShare
from gpushare.http.server import serve
from gpushare.kube.client import KubeError
from gpushare.webhook.metrics import AdmissionMeters
from gpushare.webhook.serving.app import ReviewLimits, create_app

SHARE = GpuShare.model_validate(
    {"metadata": {"name": "inference"}, "spec": {"clients": {"perGpu": 8, "memory": {"default": "8Gi"}}}}
)
POD = {"spec": {"containers": [{"name": "app", "resources": {"limits": {"gpushare.dev/inference": "1"}}}]}}
SECRET = "hunter2"


class FakeSources:
    def __init__(self, error: Exception | None = None, hangs: bool = False, silence: str = "") -> None:
        self.error, self.hangs, self.said = error, hangs, silence

    async def shares(self, names: Collection[str]) -> dict[str, GpuShare]:
        if self.hangs:
            await asyncio.Event().wait()
        if self.error:
            raise self.error
        return {name: SHARE for name in names if name == SHARE.name}

    def share_names(self) -> list[str]:
        return [SHARE.name]

    async def silence(self, node: str) -> str:
        return self.said

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
    assert [(operation["op"], operation["path"]) for operation in operations] == [
        ("add", "/spec/containers/0/env"),
        ("add", "/spec/containers/0/lifecycle"),
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


@pytest.mark.parametrize("path", ["/mutate-pods", "/validate-pods"])
async def test_an_update_of_a_pod_is_never_held_up(webhook: Webhook, path: str) -> None:
    response = await webhook.post(path, review(POD, "UPDATE", oldObject=POD))
    assert response == {"uid": "u-1", "allowed": True}


@pytest.mark.parametrize("path", ["/mutate-pods", "/validate-pods", "/validate-gpushares", "/validate-departures"])
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


async def test_a_body_that_no_api_server_wrote_and_that_is_too_large_is_an_error(webhook: Webhook) -> None:
    async with (
        webhook.client(limits=ReviewLimits(body_bytes=1000)) as http,
        http.post("/mutate-pods", data=b"x" * 1001) as answer,
    ):
        assert (answer.status, await answer.text()) == (413, "1001 bytes of JSON, at most 1000")


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        (ReviewLimits(body_bytes=5000), "bytes of JSON, at most 5000"),
        (ReviewLimits(values=5000), "values in maps and lists, at most 5000"),
    ],
)
async def test_an_object_that_is_too_large_is_refused_unread(
    webhook: Webhook, limits: ReviewLimits, words: str
) -> None:
    large = {**POD, "metadata": {"annotations": {str(number): "" for number in range(6000)}}}
    async with webhook.client(limits=limits) as http, http.post("/mutate-pods", json=review(large)) as answer:
        response = (await answer.json())["response"]
    assert (response["uid"], response["allowed"]) == ("u-1", False)
    assert words in response["status"]["message"]
    assert response["status"]["message"].endswith("make it smaller")
    assert webhook.registry.get_sample_value(
        "gpushare_admission_refusals_total", {"endpoint": "mutate-pods", "reason": "Size"}
    )


async def test_a_body_that_never_ends_is_given_up(webhook: Webhook) -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    async with (
        webhook.client(limits=ReviewLimits(seconds=0.2)) as http,
        http.post("/mutate-pods", data=body(), headers={"Content-Length": "100"}) as answer,
    ):
        assert answer.status == 503


async def test_a_body_must_say_its_length(webhook: Webhook) -> None:
    async def body() -> AsyncIterator[bytes]:
        yield json.dumps(review(POD)).encode()

    async with webhook.client() as http, http.post("/mutate-pods", data=body()) as answer:
        assert answer.status == 411


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"request": ' + b"9" * 10_000 + b"}",
        json.dumps(review({"metadata": {"a": float("inf")}})).encode(),
        gzip.compress(json.dumps(review(POD)).encode()),
    ],
    ids=["deep lists", "deep maps", "a long number", "infinity", "compressed"],
)
async def test_what_json_could_do_to_a_reader_is_a_bad_request(webhook: Webhook, body: bytes) -> None:
    limits = ReviewLimits(values=1_000_000)
    async with webhook.client(limits=limits) as http, http.post("/mutate-pods", data=body) as answer:
        text = "the body is not an AdmissionReview of admission.k8s.io/v1"
        assert (answer.status, await answer.text()) == (400, text)


@pytest.mark.parametrize(
    "pod",
    [
        {"spec": [7]},
        {"spec": {"containers": {}}, "metadata": "x"},
        {"spec": {"containers": [7]}},
        {"spec": {"containers": [{"resources": {"limits": {"gpushare.dev/inference": "1"}}, "env": [{"name": []}]}]}},
        {"spec": {**POD["spec"], "terminationGracePeriodSeconds": SECRET}},
        {"spec": {**POD["spec"], "terminationGracePeriodSeconds": 1e400}},
        {"spec": POD["spec"], "metadata": {"annotations": {"gpushare.dev/threads": [SECRET]}}},
    ],
)
async def test_fields_of_another_type_are_a_bad_request_and_never_logged(
    webhook: Webhook, caplog: pytest.LogCaptureFixture, pod: dict[str, Any]
) -> None:
    caplog.set_level(logging.DEBUG)
    body = json.dumps(review(pod)).replace("Infinity", "1e400").encode()
    async with webhook.client() as http, http.post("/mutate-pods", data=body) as answer:
        assert answer.status == 400
        assert "of another type" in await answer.text()
    assert SECRET not in caplog.text


async def test_what_is_not_printable_is_escaped_in_answers_and_logs(
    webhook: Webhook, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    evil = "x\x1b[2J\n\u202egpushare"
    limits = {f"gpushare.dev/{evil}": "1"}
    pod = {"spec": {"containers": [{"resources": {"limits": limits}, "env": [{"name": f"GPUSHARE_{evil}"}]}]}}
    response = await webhook.post("/mutate-pods", review(pod, kind=evil, namespace=evil))
    lines = response["status"]["message"].splitlines()
    assert [line for line in lines if not line.isprintable()] == []
    assert len(lines) == 3, "a line for each problem, and the first one"
    assert [record for record in caplog.messages if not record.isprintable()] == []


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


async def test_reviews_are_counted_by_outcome_and_refusals_by_reason(webhook: Webhook) -> None:
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


@pytest.mark.parametrize(
    ("metadata", "named"),
    [({"name": "a"}, '"shop/a"'), ({"generateName": "web-5d8-"}, '"shop/web-5d8-*"'), ({}, '"shop/*"')],
)
async def test_a_refusal_is_logged_by_the_objects_name_and_its_reasons(
    webhook: Webhook, caplog: pytest.LogCaptureFixture, metadata: dict[str, str], named: str
) -> None:
    caplog.set_level(logging.INFO)
    annotations = {"gpushare.dev/threads": "all"}
    variable = {"name": "GPUSHARE_X", "value": SECRET}
    spec = {"containers": [{**POD["spec"]["containers"][0], "env": [variable]}]}
    await webhook.post("/mutate-pods", review({"metadata": {**metadata, "annotations": annotations}, "spec": spec}))
    assert f"refused Pod {named}: Annotation, Environment" in caplog.messages


DEPLOYMENT = {"spec": {"template": json.loads(json.dumps(POD).replace("inference", "inferense"))}}


async def test_who_applies_a_deployment_is_warned(webhook: Webhook) -> None:
    response = await webhook.post("/validate-owners", review(DEPLOYMENT, kind="Deployment"))
    assert response["allowed"]
    (warning,) = response["warnings"]
    assert warning.startswith("pods of this Deployment will be refused: spec.containers[0].resources.limits[")


async def test_a_deployment_that_is_too_large_to_be_read_is_not_refused(webhook: Webhook) -> None:
    async with (
        webhook.client(limits=ReviewLimits(body_bytes=100)) as http,
        http.post("/validate-owners", json=review(DEPLOYMENT, kind="Deployment")) as answer,
    ):
        assert (await answer.json())["response"] == {"uid": "u-1", "allowed": True}


CLIENT = {**POD, "metadata": {"name": "client"}}
UNGUARDED = {"type": "DeparturesGuarded", "status": "False", "message": "node n1"}


@pytest.mark.parametrize(
    ("kind", "old", "silence", "begins"),
    [
        ("Pod", CLIENT, "no heartbeat", ["no gpushare agent reports"]),
        ("Pod", CLIENT, "", []),
        ("GpuShare", {"status": {"conditions": [UNGUARDED]}}, "", ["GPUs of silent nodes"]),
        ("GpuShare", {}, "", []),
    ],
)
async def test_a_deletion_on_a_silent_node_gets_a_warning_and_no_refusal(
    webhook: Webhook, kind: str, old: dict[str, Any], silence: str, begins: list[str]
) -> None:
    gone = review({}, "DELETE", kind, object=None, oldObject=old)
    response = await webhook.post("/validate-departures", gone, FakeSources(silence=silence))
    assert response["allowed"]
    warnings = response.get("warnings", [])
    assert [text.startswith(begin) for text, begin in zip(warnings, begins, strict=True)] == [True] * len(begins)
