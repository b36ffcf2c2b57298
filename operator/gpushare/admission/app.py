"""AdmissionReview v1 over HTTP: reads a review, gathers its data, answers. The rules are in pods, claims and shares.

Guarantees: body and time are bounded; a review has no side effect, so a dry run needs no care; no content of a pod is
logged. Where we fail, the answer is 5xx, and the webhook's failurePolicy decides.
"""

import asyncio
import base64
import json
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any

from aiohttp import web

from gpushare.admission.claims import admit_claim, check_claim, shares_claimed, shares_of
from gpushare.admission.metrics import AdmissionMeters
from gpushare.admission.pods import admit_pod, check_pod, delete_pod, shares_asked_for, update_pod
from gpushare.admission.review import AdmissionData, Admitted, Answer, Denied, listed, mapped
from gpushare.admission.shares import delete_share, validate_share
from gpushare.admission.sources import Sources
from gpushare.kube.client import API_ERRORS

LOG = logging.getLogger(__name__)

Decide = Callable[[dict[str, Any]], Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class ReviewLimits:
    """What one review may take."""

    body_bytes: int = 4 * 1024 * 1024
    """An object has at most about 3 MiB in the API server; an update carries it twice, but pods are far smaller."""
    seconds: float = 5.0
    """For body and decision; less than the API server's own time limit, so that it gets our answer."""


def create_app(
    sources: Sources, own_namespace: str, meters: AdmissionMeters, limits: ReviewLimits | None = None
) -> web.Application:
    """POST /{mutate,validate}-pods, /{mutate,validate}-claims, /validate-gpushares, /validate-departures.

    `own_namespace`: where gpushare runs.
    """
    limits = limits or ReviewLimits()
    reviews = _Reviews(sources, own_namespace)
    decisions: dict[str, Decide] = {
        "mutate-pods": reviews.mutate_pod,
        "validate-pods": reviews.validate_pod,
        "mutate-claims": reviews.mutate_claim,
        "validate-claims": reviews.validate_claim,
        "validate-gpushares": reviews.validate_gpu_share,
        "validate-departures": reviews.validate_departure,
    }
    app = web.Application(client_max_size=limits.body_bytes)
    app.add_routes(
        [web.post(f"/{name}", _endpoint(name, decide, meters, limits)) for name, decide in decisions.items()]
    )
    return app


class _Reviews:
    """Gathers the data of each review and decides. Operations that no rule is about are admitted."""

    def __init__(self, sources: Sources, own_namespace: str) -> None:
        self._sources = sources
        self._own_namespace = own_namespace

    async def mutate_pod(self, request: dict[str, Any]) -> Answer:
        if request["operation"] != "CREATE":
            return Admitted()
        return admit_pod(request["object"], await self._pod_data(request))

    async def validate_pod(self, request: dict[str, Any]) -> Answer:
        if request["operation"] == "CREATE":
            return check_pod(request["object"], await self._pod_data(request))
        if request["operation"] == "UPDATE":
            return update_pod(request["oldObject"], request["object"])
        return Admitted()

    async def mutate_claim(self, request: dict[str, Any]) -> Answer:
        if request["operation"] != "CREATE":
            return Admitted()
        return admit_claim(request["object"], await self._claim_data(request))

    async def validate_claim(self, request: dict[str, Any]) -> Answer:
        if request["operation"] != "CREATE":
            return Admitted()
        return check_claim(request["object"], await self._claim_data(request))

    async def validate_gpu_share(self, request: dict[str, Any]) -> Answer:
        if request["operation"] not in ("CREATE", "UPDATE"):
            return Admitted()
        return validate_share(request["object"], request.get("oldObject"))

    async def validate_departure(self, request: dict[str, Any]) -> Answer:
        """Of a pod or a GpuShare; never refused."""
        old = request.get("oldObject")
        if request["operation"] != "DELETE" or not isinstance(old, dict):
            return Admitted()
        if request["kind"]["kind"] == "GpuShare":
            return delete_share(old)
        silence = await self._sources.silence(mapped(old, "spec").get("nodeName") or "")
        if not silence:
            return Admitted()
        entries = listed(mapped(old, "spec"), "resourceClaims")
        claims = await self._sources.claims(request.get("namespace") or "", entries) if entries else {}
        return delete_pod(old, claims, silence)

    async def _pod_data(self, request: dict[str, Any]) -> AdmissionData:
        pod = request["object"]
        entries = listed(mapped(pod, "spec"), "resourceClaims")
        claims = await self._sources.claims(request.get("namespace") or "", entries) if entries else {}
        claimed = {share for claim in claims.values() for share in shares_of(claim)}
        return replace(await self._data(request, shares_asked_for(pod) | claimed), claims=claims)

    async def _claim_data(self, request: dict[str, Any]) -> AdmissionData:
        return await self._data(request, shares_claimed(request["object"]))

    async def _data(self, request: dict[str, Any], shares: set[str]) -> AdmissionData:
        namespace = request.get("namespace") or ""
        return AdmissionData(
            namespace=namespace,
            namespace_labels=await self._sources.namespace_labels(namespace),
            shares=await self._sources.shares(shares),
            share_names=self._sources.share_names(),
            own_namespace=self._own_namespace,
        )


def review_response(uid: str, answer: Answer) -> dict[str, Any]:
    """The AdmissionReview with the answer. A denial has code 403: kubectl drops the message of a 422."""
    response: dict[str, Any] = {"uid": uid, "allowed": isinstance(answer, Admitted)}
    if isinstance(answer, Denied):
        response["status"] = {"status": "Failure", "code": 403, "reason": "Forbidden", "message": answer.message()}
    else:
        if answer.warnings:
            response["warnings"] = list(answer.warnings)
        if answer.changes:
            patch = json.dumps([change.operation() for change in answer.changes])
            response |= {"patchType": "JSONPatch", "patch": base64.b64encode(patch.encode()).decode()}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}


def _endpoint(
    name: str, decide: Decide, meters: AdmissionMeters, limits: ReviewLimits
) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def endpoint(http: web.Request) -> web.Response:
        began, answer = time.monotonic(), None
        try:
            response, answer = await review(http)
            return response
        finally:
            meters.reviewed(name, answer, time.monotonic() - began)

    async def review(http: web.Request) -> tuple[web.Response, Answer | None]:
        try:
            async with asyncio.timeout(limits.seconds):
                body = await http.read()
                request = _review_request(body)
                if request is None:
                    text = "the body is not an AdmissionReview of admission.k8s.io/v1"
                    return _error(HTTPStatus.BAD_REQUEST, text), None
                answer = await decide(request)
        except web.HTTPRequestEntityTooLarge:
            text = f"the body exceeds {limits.body_bytes} bytes"
            return _error(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, text), None
        except API_ERRORS as error:  # a TimeoutError is an OSError
            LOG.warning("a review at /%s failed: %s: %s", name, type(error).__name__, error)
            text = "the API server did not answer gpushare's webhook in time"
            return _error(HTTPStatus.SERVICE_UNAVAILABLE, text), None
        if isinstance(answer, Denied):
            LOG.info("refused a %s in namespace %r", request["kind"]["kind"], request.get("namespace") or "")
        return web.json_response(review_response(request["uid"], answer)), answer

    return endpoint


def _review_request(body: bytes) -> dict[str, Any] | None:
    """The review's request; None where a field that we read is missing or of another type."""
    try:
        review = json.loads(body)
        request = review["request"]
        complete = (
            review["apiVersion"] == "admission.k8s.io/v1"
            and isinstance(request["uid"], str)
            and isinstance(request["kind"]["kind"], str)
            and (request["operation"] not in ("CREATE", "UPDATE") or isinstance(request["object"], dict))
            and (request["operation"] != "UPDATE" or isinstance(request["oldObject"], dict))
        )
    except (ValueError, KeyError, TypeError):
        return None
    return request if complete else None


def _error(status: HTTPStatus, message: str) -> web.Response:
    return web.Response(text=message, status=status)
