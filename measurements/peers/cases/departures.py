"""Pods that are deleted in mid-kernel beside three neighbours: how many deletions until one of them is hurt."""

import time
from typing import Any

from measurements.gpu.stack.suites import parts
from measurements.gpu.stack.suites.accidents.departures import delete_in_turn, start_victims
from measurements.peers.ways.way import Clients, Way, clients
from tests.cluster.harness import Harness

KERNELS_MS = (20, 1000)
NEIGHBOURS, BATCHES = 3, (1, 4)
"""The first is deleted alone, so that it is known whether a single deletion is enough."""
WATCHED_SECONDS = 3.0


def measure(kernel_ms: int, harness: Harness, way: Way) -> dict[str, Any]:
    """Ends with the batch that hurts a neighbour."""
    with clients(harness, way) as tenant:
        return _deletions(tenant, kernel_ms)


def _deletions(tenant: Clients, kernel_ms: int) -> dict[str, Any]:
    names = tenant.neighbours("", NEIGHBOURS)
    deleted, took = 0, list[float]()
    for number, victims in enumerate(BATCHES):
        took += delete_in_turn(tenant, start_victims(tenant, f"victim-{number}", kernel_ms, victims))
        deleted += victims
        time.sleep(WATCHED_SECONDS)
        alive = parts.alive(tenant, names)
        if len(alive) < NEIGHBOURS:
            break
    return {
        "deletions": deleted,
        "neighbours": NEIGHBOURS,
        "hurt": NEIGHBOURS - len(alive),
        "codes": parts.errors(tenant, names),
        "seconds_until_gone": parts.spread(took),
    }
