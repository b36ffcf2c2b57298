"""Durations as Kubernetes writes them: `90s`, `5m`, `1h30m`. Whole seconds only, so that none is misread."""

import re
from typing import Annotated

from pydantic import Field

from gpushare.api.base import checked, rule

DURATION_PATTERN = r"^([0-9]{1,6}h)?([0-9]{1,6}m)?([0-9]{1,6}s)?$"
Duration = Annotated[
    str,
    Field(
        max_length=16,
        json_schema_extra=checked(
            rule(
                f"size(self) > 0 && self.matches(r'{DURATION_PATTERN}')",
                "must be a duration of whole seconds, such as 90s, 5m or 1h30m",
                says="'\"' + self + '\" is not a duration of whole seconds: write it like 90s, 5m or 1h30m'",
            )
        ),
    ),
]
_DURATION = re.compile(r"(?:(?P<h>[0-9]{1,6})h)?(?:(?P<m>[0-9]{1,6})m)?(?:(?P<s>[0-9]{1,6})s)?")


def parse_duration(text: str) -> int:
    """Seconds of a duration such as `90s`, `5m` or `1h30m`; `0s` is zero.

    Raises ValueError with a sentence that says how to write it.
    """
    match = _DURATION.fullmatch(text)
    if match is None or not text:
        raise ValueError(f'{text!r} is not a duration; write it like "90s", "5m" or "1h30m"')
    hours, minutes, seconds = (int(match[unit] or 0) for unit in "hms")
    return hours * 3600 + minutes * 60 + seconds
