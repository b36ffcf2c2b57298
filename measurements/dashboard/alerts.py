"""Which alerts fired in a run, and whether something had happened that they mean. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.prometheus.server import Series

FIRING = 'ALERTS{alertstate="firing"}'
LOOKBACK_SECONDS = 30 * 60 + 120
"""The longest window of an alert's expression, and a little: so long after an accident may an alert speak of it."""

GAP_SECONDS = 90.0
"""An alert that is away for longer has ended, and fires anew."""


@dataclass(frozen=True)
class Fired:
    """One alert with its labels. `start`, `end`: Unix seconds. `because`: accidents that it means, latest first."""

    alert: str
    labels: Mapping[str, str]
    start: float
    end: float
    because: tuple[str, ...]

    @property
    def false(self) -> bool:
        return not self.because


def judge(
    firing: Sequence[Series], happened: Sequence[tuple[float, str]], meant: Mapping[str, frozenset[str]]
) -> list[Fired]:
    """`happened`: (Unix seconds, accident). `meant`: by accident, the alerts that are right to fire after it."""
    fired_alerts = []
    for series in firing:
        labels = {key: value for key, value in series.labels.items() if key not in ("__name__", "alertstate")}
        alert = labels.pop("alertname")
        for start, end in stretches([at for at, _ in series.points]):
            because = [
                what
                for at, what in sorted(happened, reverse=True)
                if start - LOOKBACK_SECONDS <= at <= start and alert in meant.get(what, ())
            ]
            fired_alerts.append(Fired(alert, labels, start, end, tuple(dict.fromkeys(because))))
    return sorted(fired_alerts, key=lambda fired: (fired.start, fired.alert))


def stretches(times: Sequence[float]) -> list[tuple[float, float]]:
    """First and last of each run of times that are no further apart than GAP_SECONDS."""
    spans: list[tuple[float, float]] = []
    for at in times:
        if spans and at - spans[-1][1] <= GAP_SECONDS:
            spans[-1] = (spans[-1][0], at)
        else:
            spans.append((at, at))
    return spans
