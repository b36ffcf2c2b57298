"""Each accident happens beside three clients that check their results.

The figures say who died, what was told, and when a new pod computed.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from measurements.gpu.stack.suites import parts
from measurements.gpu.stack.suites.accidents import faults
from measurements.peers.cases.served import REPAIR_SECONDS, served, since, told
from measurements.peers.ways.way import CHANGED_CLIENTS, CLIENTS, Clients, Part, Way, clients
from tests.cluster.harness import Harness
from tests.cluster.node import signal_in_node

NEIGHBOURS, SETTLE_SECONDS = 3, 4.0


@dataclass(frozen=True)
class Accident:
    happen: Callable[[Way, Clients], None]
    needs: Part | None = None


def measure(name: str, harness: Harness, way: Way) -> dict[str, Any]:
    accident = ACCIDENTS[name]
    if accident.needs and accident.needs not in way.parts:
        return {"absent": accident.needs}
    computes = False
    try:
        outcome = _one(harness, way, accident)
        computes = outcome["new_client"]["seconds"] is not None
        return outcome
    finally:
        if way.offered() not in (CLIENTS, None):
            way.offer(CLIENTS)
        if not computes and not repair(harness, way):
            raise AssertionError(f"{way.name}: no pod computes after its parts were replaced")


def _one(harness: Harness, way: Way, accident: Accident) -> dict[str, Any]:
    with clients(harness, way) as tenant:
        names = tenant.neighbours("", NEIGHBOURS)
        before, daemon = told(tenant), way.daemon()
        began = time.monotonic()
        accident.happen(way, tenant)
        happened = time.monotonic()
        new = served(tenant, "after", began)
        time.sleep(max(0.0, SETTLE_SECONDS - (time.monotonic() - happened)))
        alive = parts.alive(tenant, names)
        return {
            "neighbours": NEIGHBOURS,
            "hurt": NEIGHBOURS - len(alive),
            "codes": parts.errors(tenant, names),
            "daemon_stayed": daemon == way.daemon(),
            "new_client": new.as_json(),
            "told": since(before, told(tenant)),
        }


def repair(harness: Harness, way: Way) -> bool:
    """Repairs as an administrator would, by replacing the daemon and the agent. Returns whether new pods compute
    again."""
    with clients(harness, way) as tenant:
        if served(tenant, "still").seconds is not None:
            return True
    for part in replaced(way.parts):
        way.restart(part)
    with clients(harness, way) as tenant:
        return served(tenant, "repaired", limit=REPAIR_SECONDS).seconds is not None


def replaced(parts: frozenset[Part]) -> list[Part]:
    """What is replaced of a way with these parts: an MPS daemon that has a pod goes with its pod."""
    daemon = Part.DAEMON_POD if Part.DAEMON_POD in parts else Part.DAEMON
    return [part for part in (daemon, Part.NODE_AGENT) if part in parts]


def _kill(which: str) -> Callable[[Way, Clients], None]:
    def happen(way: Way, tenant: Clients) -> None:
        daemon = way.daemon()
        pid = getattr(daemon, which)
        assert pid is not None, f"{way.name} has no {which}"
        signal_in_node(tenant.harness, pid, "KILL")

    return happen


ACCIDENTS = {
    "agent-pod-deleted": Accident(lambda way, _: way.restart(Part.NODE_AGENT), Part.NODE_AGENT),
    "limits-changed": Accident(lambda way, _: way.offer(CHANGED_CLIENTS), Part.LIMITS),
    "illegal-access": Accident(lambda _, tenant: faults.illegal_access(tenant)),
    "client-crashes": Accident(lambda _, tenant: faults.die(tenant, "crash")),
    "daemon-pod-deleted": Accident(lambda way, _: way.restart(Part.DAEMON_POD), Part.DAEMON_POD),
    "server-killed": Accident(_kill("server"), Part.DAEMON),
    "daemon-killed": Accident(_kill("control"), Part.DAEMON),
}
