"""Questions to a Prometheus over HTTP, or to what answers as one (Thanos, Mimir, VictoriaMetrics).

Guarantees: nothing is made of an answer that lacks a part. No answer is read beyond a number of bytes, and none is
waited for beyond a time. No redirect is followed, since a token would go with it. Whatever answers, what is raised is
UnreachableError with one sentence.
"""

import http.client
import json
import math
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpushare.kubectl.failures import UnreachableError, WrongInputError

QUESTION_SECONDS = 60.0
LARGEST_ANSWER = 32 * 1024 * 1024
"""Bytes: some 100,000 series with one value each."""
LARGEST_REFUSAL = 4096
LONGEST_LABEL = 316
"""Characters: no name of Kubernetes is longer. Whoever has series in the same Prometheus chooses them."""
SHOWN_REFUSAL = 300
CHUNK = 65536


@dataclass(frozen=True, slots=True)
class PrometheusSeries:
    """Labels, and (Unix seconds, value) in the order of time; one alone of an instant query. All values are finite."""

    labels: Mapping[str, str]
    points: Sequence[tuple[float, float]]


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


class PrometheusApi:
    """One question at a time for each call; calls from several threads do not wait for each other."""

    def __init__(
        self, url: str, token: str = "", seconds: float = QUESTION_SECONDS, largest: int = LARGEST_ANSWER
    ) -> None:
        """`url`: from `checked_url`. `token`: a bearer token. `seconds`, `largest` (bytes): limits of each answer."""
        self.url = url
        self._headers = {"Accept": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        self._seconds = seconds
        self._largest = largest
        self._opener = urllib.request.build_opener(_NoRedirect)

    def instant(self, query: str, at: float) -> list[PrometheusSeries]:
        return self._ask("query", query=query, time=f"{at:.3f}")

    def over(self, query: str, begin: float, end: float, step: float) -> list[PrometheusSeries]:
        """The query at each `step` seconds from `begin` to `end`."""
        return self._ask("query_range", query=query, start=f"{begin:.3f}", end=f"{end:.3f}", step=f"{step:.3f}")

    def _ask(self, path: str, **parameters: str) -> list[PrometheusSeries]:
        parameters["timeout"] = f"{self._seconds:.0f}s"
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        request = urllib.request.Request(url, headers=self._headers)  # noqa: S310 - checked_url lets http and https in
        end = time.monotonic() + self._seconds
        try:
            with self._opener.open(request, timeout=self._seconds) as answer:
                body = self._body(answer, end)
        except urllib.error.HTTPError as error:
            raise self._failure(_refusal(error)) from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            if isinstance(reason, TimeoutError):
                raise self._late() from None
            raise self._failure(f"is not reached: {reason or type(reason).__name__}") from None
        return self._series(body)

    def _body(self, answer: http.client.HTTPResponse, end: float) -> bytes:
        body = bytearray()
        while chunk := answer.read1(CHUNK):
            body += chunk
            if len(body) > self._largest:
                raise self._failure(
                    f"answers with more than {self._largest} bytes: ask for one --share, or a shorter --window"
                )
            if time.monotonic() > end:
                raise self._late()
        return bytes(body)

    def _series(self, body: bytes) -> list[PrometheusSeries]:
        try:
            answer = json.loads(body)
            warnings = [str(warning) for warning in answer.get("warnings") or ()]
            series = [line for item in answer["data"]["result"] if (line := _one(item)).points]
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            raise self._failure(f"answers something that no Prometheus does: {body[:80]!r}") from None
        if warnings:
            # Such as of a store that did not answer: what is missing may be the very peak.
            raise self._failure(f"answers, but not with all that it has: {warnings[0][:SHOWN_REFUSAL]}")
        return series

    def _late(self) -> UnreachableError:
        return self._failure(
            f"has not answered within {self._seconds:.0f} s: ask for one --share, or a shorter --window"
        )

    def _failure(self, what: str) -> UnreachableError:
        return UnreachableError(f"Prometheus at {self.url} {' '.join(what.split())}")


def _one(item: Any) -> PrometheusSeries:
    points = item["values"] if "values" in item else [item["value"]]
    numbers = [(float(at), float(value)) for at, value in points]
    labels = {str(name): str(value)[:LONGEST_LABEL] for name, value in item["metric"].items()}
    return PrometheusSeries(labels, [point for point in numbers if math.isfinite(point[1])])


def _refusal(error: urllib.error.HTTPError) -> str:
    if 300 <= error.code < 400:
        to = str(error.headers.get("Location", ""))[:SHOWN_REFUSAL]
        return f"sends us on (HTTP {error.code}) to {to}: give the address that answers itself"
    try:
        said = json.loads(error.read(LARGEST_REFUSAL))["error"]
    except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError):
        said = "is this a Prometheus, and may you read it (--bearer-token-file)?"
    return f"refuses a query (HTTP {error.code}): {str(said)[:SHOWN_REFUSAL]}"


def checked_url(text: str) -> str:
    """The URL without a slash at its end. Raises WrongInputError for what no Prometheus can be asked at."""
    try:
        parts = urllib.parse.urlsplit(text)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        raise WrongInputError(f"--prometheus {text!r}: is no URL; write it like http://localhost:9090") from None
    if parts.username is not None or parts.password is not None:
        # The URL is not repeated: it has a password in it.
        raise WrongInputError("--prometheus: no name and password in the URL; give a token by --bearer-token-file")
    if not usable or parts.query or parts.fragment or not text.isprintable() or " " in text:
        raise WrongInputError(f"--prometheus {text!r}: is no URL of a Prometheus; write it like http://localhost:9090")
    return text.rstrip("/")
