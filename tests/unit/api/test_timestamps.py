"""Times as the Kubernetes API writes and reads them."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.api.timestamps import format_timestamp, parse_timestamp

NOON = datetime(2026, 1, 1, 12, 0, 0, 999_999, UTC)
IN_INDIA = timezone(timedelta(hours=5, minutes=30))


@pytest.mark.parametrize(
    ("moment", "micro", "text"),
    [
        pytest.param(NOON, False, "2026-01-01T12:00:00Z", id="whole seconds, cut off"),
        pytest.param(NOON, True, "2026-01-01T12:00:00.999999Z", id="microseconds"),
        pytest.param(NOON.replace(microsecond=0), True, "2026-01-01T12:00:00.000000Z", id="six digits, always"),
        pytest.param(datetime(2026, 1, 1, 17, 30, tzinfo=IN_INDIA), False, "2026-01-01T12:00:00Z", id="in UTC"),
    ],
)
def test_a_time_is_written_as_the_api_does(moment: datetime, micro: bool, text: str) -> None:
    assert format_timestamp(moment, micro=micro) == text


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        pytest.param("2026-01-01T12:00:00Z", datetime(2026, 1, 1, 12, tzinfo=UTC), id="metav1.Time"),
        pytest.param("2026-01-01T12:00:00.999999Z", NOON, id="metav1.MicroTime"),
        pytest.param("2026-01-01T17:30:00+05:30", datetime(2026, 1, 1, 12, tzinfo=UTC), id="another time zone"),
        pytest.param("2026-01-01T12:00:00", datetime(2026, 1, 1, 12, tzinfo=UTC), id="no time zone is UTC"),
    ],
)
def test_a_time_is_read_with_its_zone(text: str, moment: datetime) -> None:
    assert parse_timestamp(text) == moment


@pytest.mark.parametrize("text", ["", "yesterday", "2026-13-01T00:00:00Z"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"isoformat|month"):
        parse_timestamp(text)


@given(st.datetimes(min_value=datetime(1970, 1, 1), max_value=datetime(2200, 1, 1), timezones=st.just(UTC)))
def test_what_is_written_is_read_as_the_same_moment(moment: datetime) -> None:
    assert parse_timestamp(format_timestamp(moment, micro=True)) == moment
    assert parse_timestamp(format_timestamp(moment)) == moment.replace(microsecond=0)
