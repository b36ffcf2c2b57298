"""The webhook's metrics: reviews, reasons of refusals, and the end of its certificate.

Guarantees: each replica counts its own reviews; no label holds what a tenant wrote.
"""

from collections.abc import Callable, Iterator
from datetime import datetime

from prometheus_client import CollectorRegistry, Counter, Histogram

from gpushare.metrics.exported import Exported
from gpushare.metrics.families import Family, Sample
from gpushare.webhook.review import Admitted, Answer, Reason

CERTIFICATE = Family(
    "gpushare_webhook_certificate_expiry_timestamp_seconds",
    "When the serving certificate in use ends, in seconds since 1970.",
)
FAMILIES = (CERTIFICATE,)

REVIEW_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
ENDPOINTS = (
    "mutate-pods", "validate-pods", "mutate-claims", "validate-claims", "validate-gpushares", "validate-departures",
    "validate-owners",
)  # fmt: skip
RESULTS = ("admitted", "refused", "failed")


def samples(not_after: datetime) -> Iterator[Sample]:
    yield CERTIFICATE.of(not_after.timestamp())


def export(take: Callable[[], datetime | None]) -> tuple[Exported, "AdmissionMeters"]:
    """The metrics of a webhook. `take`: the end of the certificate in use, None while there is none."""
    exported = Exported("webhook")
    exported.snapshot(FAMILIES, take, samples)
    return exported, AdmissionMeters(exported.registry)


class AdmissionMeters:
    """Counts reviews. Every combination of labels starts at 0, so that a rate sees the first review."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._seconds = Histogram(
            "gpushare_admission_review_duration_seconds",
            "Time that a review took here; the API server waits meanwhile.",
            ["endpoint"],
            buckets=REVIEW_BUCKETS,
            registry=registry,
        )
        self._reviews = Counter(
            "gpushare_admission_reviews",
            "Reviews by result; failed ones have none, so the webhook's failurePolicy decides.",
            ["endpoint", "result"],
            registry=registry,
        )
        self._refusals = Counter(
            "gpushare_admission_refusals",
            "Refused reviews by reason, once for each reason that a review has.",
            ["endpoint", "reason"],
            registry=registry,
        )
        for endpoint in ENDPOINTS:
            self._seconds.labels(endpoint)
            for result in RESULTS:
                self._reviews.labels(endpoint, result)
            for reason in Reason:
                if (reason is Reason.SHARE_SPEC) == (endpoint == "validate-gpushares"):
                    self._refusals.labels(endpoint, reason.value)

    def reviewed(self, endpoint: str, answer: Answer | None, seconds: float) -> None:
        """`answer`: None where the review failed."""
        self._seconds.labels(endpoint).observe(seconds)
        if answer is None:
            self._reviews.labels(endpoint, "failed").inc()
        elif isinstance(answer, Admitted):
            self._reviews.labels(endpoint, "admitted").inc()
        else:
            self._reviews.labels(endpoint, "refused").inc()
            for reason in answer.reasons:
                self._refusals.labels(endpoint, reason.value).inc()
