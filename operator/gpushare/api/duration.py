"""Durations as Kubernetes writes them: `90s`, `5m`, `1h30m`. Whole seconds only, so that none is misread."""

import re

DURATION_PATTERN = r"^([0-9]{1,6}h)?([0-9]{1,6}m)?([0-9]{1,6}s)?$"
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
