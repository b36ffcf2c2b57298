"""The tests by name. Each gets the cluster and the way, and returns its figures as JSON.

Those that say most about a way come first: a short campaign has time for these only.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from measurements.peers.cases import accidents, departures, limits, programs, starting, throughput
from measurements.peers.ways.way import Way
from tests.cluster.harness import Harness


@dataclass(frozen=True)
class Case:
    measure: Callable[[Harness, Way], dict[str, Any]]
    seconds: float
    """What it takes on a GPU: it is not begun with less time left."""
    most_seconds: float = 180
    """It fails if it takes longer."""


def _departures(kernel_ms: int) -> Case:
    return Case(partial(departures.measure, kernel_ms), 40)


def _accident(name: str) -> Case:
    return Case(partial(accidents.measure, name), 20)


CASES: dict[str, Case] = {
    "privileges": Case(starting.privileges, 8),
    "starts": Case(starting.starts, 22),
    "limits": Case(limits.measure, 27),
    "departures-1000ms": _departures(1000),
    "illegal-access": _accident("illegal-access"),
    "throughput": Case(throughput.measure, 77),
    "users": Case(starting.users, 10),
    "programs": Case(programs.measure, 60),
    "starts-alone": Case(starting.starts_alone, 12),
    "departures-20ms": _departures(20),
    **{name: _accident(name) for name in accidents.ACCIDENTS if name != "illegal-access"},
    "commands": Case(limits.commands, 25),
}
