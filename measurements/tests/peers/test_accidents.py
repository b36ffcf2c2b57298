"""What is replaced after an accident, so that the next case finds a way that works."""

import pytest

from measurements.peers.cases.accidents import replaced
from measurements.peers.ways.bare import BareMps, BareSlices
from measurements.peers.ways.gpushare import COMPONENTS, Gpushare
from measurements.peers.ways.way import Part


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        pytest.param(Gpushare.parts, [Part.DAEMON_POD, Part.NODE_AGENT], id="gpushare"),
        pytest.param(BareMps.parts, [Part.DAEMON], id="a daemon without a pod"),
        pytest.param(BareSlices.parts, [], id="time slices"),
    ],
)
def test_a_daemon_goes_with_its_pod(parts: frozenset[Part], expected: list[Part]) -> None:
    assert replaced(parts) == expected


def test_gpushare_has_a_pod_for_each_part_that_is_replaced() -> None:
    assert set(replaced(Gpushare.parts)) <= set(COMPONENTS)
