"""The tests by name, in their order. Each gets the cluster and the way, and returns its figures as JSON."""

from collections.abc import Callable
from functools import partial
from typing import Any

from tests.cluster.harness import Harness
from tests.peers.cases import accidents, departures, limits, starting, throughput
from tests.peers.ways.way import Way

Case = Callable[[Harness, Way], dict[str, Any]]

CASES: dict[str, Case] = {
    "privileges": starting.privileges,
    "starts": starting.starts,
    "limits": limits.measure,
    "throughput": throughput.measure,
    **{
        f"departures-{milliseconds}ms": partial(departures.measure, milliseconds)
        for milliseconds in departures.KERNELS_MS
    },
    **{name: partial(accidents.measure, name) for name in accidents.ACCIDENTS},
    "users": starting.users,
    "commands": limits.commands,
}
"""The last two may leave a way without a daemon that serves: NVIDIA's is of one user until its last client ends."""
