"""An alert is right where something happened before that it means, and false otherwise."""

import random
from itertools import pairwise

from measurements.dashboard.accidents import ACCIDENTS
from measurements.dashboard.alerts import LOOKBACK_SECONDS, judge, stretches
from measurements.dashboard.life import MOST_BETWEEN, schedule
from tests.prometheus.server import Series
from tests.unit.docs.test_alerts import ALERTS

MEANT = {"fault": frozenset({"Fault"}), "drained": frozenset()}


def firing(alert: str, *times: float) -> Series:
    labels = {"__name__": "ALERTS", "alertstate": "firing", "alertname": alert, "share": "red"}
    return Series(labels, tuple((at, 1.0) for at in times))


def test_an_alert_is_right_only_soon_after_what_it_means() -> None:
    happened = [(100.0, "fault"), (120.0, "drained")]
    for at, because in ((130.0, ("fault",)), (90.0, ()), (101.0 + LOOKBACK_SECONDS, ())):
        (fired,) = judge([firing("Fault", at)], happened, MEANT)
        assert (fired.because, fired.false) == (because, not because)
        assert fired.labels == {"share": "red"}


def test_what_happened_does_not_excuse_another_alert() -> None:
    (fired,) = judge([firing("Silent", 130.0)], [(100.0, "fault")], MEANT)
    assert fired.false


def test_an_alert_that_comes_again_is_judged_again() -> None:
    assert stretches([0, 15, 30, 300, 315]) == [(0, 30), (300, 315)]
    first, second = judge([firing("Fault", 130, 145, 5000)], [(100.0, "fault")], MEANT)
    assert (first.end, first.false, second.start, second.false) == (145, False, 5000, True)


def test_the_accidents_name_alerts_that_exist() -> None:
    assert {name for meant in ACCIDENTS.values() for name in meant} <= {alert["alert"] for alert in ALERTS}


def test_every_accident_comes_in_a_run_of_any_length() -> None:
    for minutes in (5, 60, 240):
        planned = schedule(minutes * 60, random.Random(1))
        assert {what for _, what in planned} == ACCIDENTS.keys()
        times = [at for at, _ in planned]
        assert times == sorted(times)
        assert times[-1] < minutes * 54
    assert max(later - at for at, later in pairwise(times)) < 2 * MOST_BETWEEN
