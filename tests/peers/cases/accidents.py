"""Each accident happens beside three clients that check their results.

The figures say who died, what was told, and when a new pod computed.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.cluster.harness import Harness
from tests.cluster.node import signal_in_node
from tests.gpu.stack.suites import faults, parts
from tests.peers.cases.served import served, since, told
from tests.peers.way import CLIENTS, Clients, Way, clients

NEIGHBOURS, SETTLE_SECONDS = 3, 4.0
CHANGED_CLIENTS = 4
"""In place of eight: each new client gets twice the threads and memory."""


@dataclass(frozen=True)
class Accident:
    happen: Callable[[Way, Clients], None]
    needs_daemon: bool = False


def measure(name: str, harness: Harness, way: Way) -> dict[str, Any]:
    accident = ACCIDENTS[name]
    if accident.needs_daemon and not way.under_mps:
        return {"no_daemon": True}
    try:
        return _one(harness, way, accident)
    finally:
        _repair(harness, way)


def _one(harness: Harness, way: Way, accident: Accident) -> dict[str, Any]:
    with clients(harness, way) as tenant:
        names = tenant.neighbours("", NEIGHBOURS)
        before, daemon = told(tenant), way.daemon()
        began = time.monotonic()
        accident.happen(way, tenant)
        new = served(tenant, "after", began)
        time.sleep(SETTLE_SECONDS)
        alive = parts.alive(tenant, names)
        return {
            "neighbours": NEIGHBOURS,
            "hurt": NEIGHBOURS - len(alive),
            "codes": parts.errors(tenant, names),
            "daemon_stayed": daemon == way.daemon(),
            "new_client": new.as_json(),
            "told": since(before, told(tenant)),
        }


def _repair(harness: Harness, way: Way) -> None:
    """Until new pods compute again, by what an administrator would do: delete the daemon's pod."""
    way.offer(CLIENTS)
    with clients(harness, way) as tenant:
        if served(tenant, "ready").seconds is not None:
            return
    way.restart("daemon")
    way.restart("node agent")
    with clients(harness, way) as tenant:
        if served(tenant, "repaired").seconds is None:
            raise AssertionError(f"{way.name}: no pod computes after its pods were replaced")


def _kill(which: str) -> Callable[[Way, Clients], None]:
    def happen(way: Way, tenant: Clients) -> None:
        daemon = way.daemon()
        pid = getattr(daemon, which)
        assert pid is not None, f"{way.name} has no {which}"
        signal_in_node(tenant.harness, pid, "KILL")

    return happen


ACCIDENTS = {
    "agent-pod-deleted": Accident(lambda way, _: way.restart("node agent")),
    "limits-changed": Accident(lambda way, _: way.offer(CHANGED_CLIENTS)),
    "illegal-access": Accident(lambda _, tenant: faults.illegal_access(tenant)),
    "client-crashes": Accident(lambda _, tenant: faults.die(tenant, "crash")),
    "daemon-pod-deleted": Accident(lambda way, _: way.restart("daemon"), needs_daemon=True),
    "server-killed": Accident(_kill("server"), needs_daemon=True),
    "daemon-killed": Accident(_kill("control"), needs_daemon=True),
}
