"""Moments as the API server writes them, and how long ago they were."""

from datetime import UTC, datetime

from gpushare.api.timestamps import parse_timestamp


def now() -> datetime:
    return datetime.now(UTC)


def age(moment: str | None, now: datetime) -> str:
    """The age as `duration` writes it; empty where the moment is not known."""
    return duration(max(0, int((now - parse_timestamp(moment)).total_seconds()))) if moment else ""


def duration(seconds: int) -> str:
    """A duration as kubectl writes it, such as 4m12s, 3h or 12d."""
    if seconds < 120:
        return f"{seconds}s"
    if seconds < 600:
        return f"{seconds // 60}m{seconds % 60}s"
    if seconds < 2 * 3600:
        return f"{seconds // 60}m"
    return f"{seconds // 3600}h" if seconds < 48 * 3600 else f"{seconds // 86400}d"
