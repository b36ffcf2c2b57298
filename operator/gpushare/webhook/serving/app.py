"""AdmissionReview v1 over HTTP: reads a review, gathers its data, answers. The rules are in pods, claims and shares.

Guarantees: time, memory and the size of the answer are bounded, whatever is sent: what is too large is refused before
it is read; a review has no side effect, so a dry run needs no care; of an object only its name is logged, and of a
refusal its reasons. Where we fail, the answer is 5xx, and the webhook's failurePolicy decides.
"""

import asyncio
import base64
import json
import logging
import time
import traceback
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from aiohttp import web

from gpushare.http.server import BodyTooLargeError, read_body
from gpushare.kube.client import API_ERRORS
from gpushare.webhook.metrics import AdmissionMeters
from gpushare.webhook.review import Admitted, Answer, Denied, mapped, quoted, shown
from gpushare.webhook.serving import text
from gpushare.webhook.serving.decisions import NEVER_REFUSE, Decide, Reviews
from gpushare.webhook.serving.room import Room
from gpushare.webhook.sources import Sources

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReviewLimits:
    """What reviews may take."""

    body_bytes: int = text.MOST_BYTES
    values: int = text.MOST_VALUES
    memory_bytes: int = 64 * 1024 * 1024
    """The memory of all objects that are reviewed at the same time."""
    seconds: float = 5.0
    """The time for body and decision; less than the API server's own time limit, so that it gets our answer."""


def create_app(
    sources: Sources,
    own_namespace: str,
    meters: AdmissionMeters,
    limits: ReviewLimits | None = None,
    tolerated: tuple[str, ...] = (),
) -> web.Application:
    """POST /{mutate,validate}-pods, /{mutate,validate}-claims, /validate-gpushares, /validate-departures,
    /validate-owners.

    `own_namespace`: where gpushare runs. `tolerated`: keys of taints, as of AdmissionData.
    """
    limits = limits or ReviewLimits()
    reviews = Reviews(sources, own_namespace, tolerated)
    app = web.Application()
    room = Room(limits.memory_bytes)
    app.add_routes(
        [web.post(f"/{name}", _Endpoint(name, decide, meters, limits, room).answer) for name, decide in reviews.all()]
    )
    return app


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


async def judged(body: bytes, decide: Decide) -> tuple[bytes | None, Answer | None]:
    """(the AdmissionReview that answers the one in `body`, its answer); None: there is none in it."""
    request = text.review_request(body)
    if request is None:
        return None, None
    answer = await decide(request)
    if isinstance(answer, Denied):
        LOG.info("refused %s: %s", _named(request), ", ".join(sorted(answer.reasons)))
    return json.dumps(review_response(request["uid"], answer)).encode(), answer


def _named(request: dict[str, Any]) -> str:
    """A name such as `Pod "ml/train-0"`; of one that has no name yet, what its name will begin with."""
    metadata = mapped(request["object"], "metadata")
    name = metadata.get("name") or f"{metadata.get('generateName') or ''}*"
    place = f"{request.get('namespace')}/" if request.get("namespace") else ""
    return f"{shown(request['kind']['kind'])} {quoted(f'{place}{name}')}"


@dataclass(frozen=True, slots=True)
class _Endpoint:
    """Answers the reviews of one path."""

    name: str
    decide: Decide
    meters: AdmissionMeters
    limits: ReviewLimits
    room: Room

    async def answer(self, http: web.Request) -> web.Response:
        began, answer = time.monotonic(), None
        try:
            response, answer = await self._review(http)
            return response
        finally:
            self.meters.reviewed(self.name, answer, time.monotonic() - began)

    async def _review(self, http: web.Request) -> tuple[web.Response, Answer | None]:
        until = asyncio.get_running_loop().time() + self.limits.seconds
        try:
            async with asyncio.timeout_at(until):
                body = await read_body(http, self.limits.body_bytes)
        except BodyTooLargeError as error:
            return self._too_large(error.beginning, f"{error.size} bytes of JSON, at most {self.limits.body_bytes}")
        except OSError:  # a TimeoutError too
            return _error(HTTPStatus.SERVICE_UNAVAILABLE, "the body did not come in time"), None
        count = text.values(body)
        if count > self.limits.values:
            return self._too_large(body, f"{count} values in maps and lists, at most {self.limits.values}")
        try:
            async with asyncio.timeout_at(until), self.room.taken(text.memory(body, count)):
                response, answer = await judged(body, self.decide)
        except API_ERRORS as error:  # a TimeoutError is an OSError
            LOG.warning("a review at /%s failed: %s: %s", self.name, type(error).__name__, error)
            reason = "the API server did not answer gpushare's webhook in time"
            return _error(HTTPStatus.SERVICE_UNAVAILABLE, reason), None
        except _MISSHAPEN as error:
            place = traceback.extract_tb(error.__traceback__)[-1]  # the error's text may hold what a tenant wrote
            LOG.warning("a review at /%s failed: %s in %s", self.name, type(error).__name__, place.name)
            reason = "the object, or one that it names, has a field of another type than Kubernetes gives it"
            return _error(HTTPStatus.BAD_REQUEST, reason), None
        if response is None:
            return _error(HTTPStatus.BAD_REQUEST, "the body is not an AdmissionReview of admission.k8s.io/v1"), None
        return web.json_response(body=response), answer

    def _too_large(self, beginning: bytes, what: str) -> tuple[web.Response, Answer | None]:
        uid = text.uid_of(beginning)
        if uid is None:
            return _error(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, what), None
        if self.name in NEVER_REFUSE:
            return web.json_response(review_response(uid, Admitted())), None
        answer = text.too_large(what)
        LOG.info("refused at /%s: %s", self.name, what)
        return web.json_response(review_response(uid, answer)), answer


_MISSHAPEN = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What a field of another type ends in. The API server checks types before it asks us; others may ask too."""


def _error(status: HTTPStatus, message: str) -> web.Response:
    return web.Response(text=message, status=status)
