"""Times as the Kubernetes API writes them: RFC 3339 in UTC, with a `Z`. Pure.

Guarantees: what `format_timestamp` writes, `parse_timestamp` reads as the same moment, but for the digits left out.
"""

from datetime import UTC, datetime


def format_timestamp(moment: datetime, *, micro: bool = False) -> str:
    """A text such as `2026-01-01T00:00:00Z` (metav1.Time); with `micro` `2026-01-01T00:00:00.000000Z`
    (metav1.MicroTime).

    `moment` has a time zone. Digits that are not written are cut off, not rounded.
    """
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ" if micro else "%Y-%m-%dT%H:%M:%SZ")


def parse_timestamp(text: str) -> datetime:
    """A moment with a time zone: UTC where the text names none. Raises ValueError for what is no time of RFC 3339."""
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
