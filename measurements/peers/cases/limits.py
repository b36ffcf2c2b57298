"""What a client sees of its part, what it can take beyond it, and whom it can harm by the daemon's own commands."""

import json
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from gpushare.api import names
from localcluster.kubectl import CommandError, Object
from measurements.gpu.stack.suites import parts
from measurements.gpu.stack.suites.limits import escapes
from measurements.peers.cases.served import observer, served
from measurements.peers.ways.way import Clients, Part, Promise, Variables, Way, clients
from tests.cluster.harness import Harness

WITHOUT_LIMIT = 2 << 30
"""Bytes that a client asks to exceed where the way promises none."""
START_SECONDS, TURN_SECONDS, HOLD_SECONDS = 9, 1.5, 6
LATE_SECONDS = 45
COMMAND_LIMIT_SECONDS = 120
USUAL = "as started"
SETTLE_SECONDS = 5


def attempts(variables: Variables) -> dict[str, dict[str, str]]:
    """What the client sets in its own environment before it starts CUDA."""
    past = {"past the daemon": {variables.past: "/tmp/nowhere"}} if variables.past else {}
    return {
        USUAL: {},
        "memory: limit raised": {variables.memory: variables.memory_raised},
        "memory: malformed limit": {variables.memory: variables.memory_malformed},
        "threads: 100 asked for": {variables.threads: "100"},
        "threads: 4 asked for": {variables.threads: "4"},
    } | past


def measure(harness: Harness, way: Way) -> dict[str, Any]:
    """Measures the limits. Where nothing limits a client, only what it sees and takes is of interest."""
    tried = attempts(way.variables)
    absent: dict[str, Any] = {}
    if way.promise == Promise(None, None) and Part.DAEMON not in way.parts:
        _, *others = tried
        tried, absent = {USUAL: tried[USUAL]}, {attempt: {"absent": "limits"} for attempt in others}
    with clients(harness, way) as tenant:
        way.hold(tenant)
        begin = time.time() + START_SECONDS
        hold = HOLD_SECONDS + TURN_SECONDS * len(tried)
        pods = {}
        for number, (attempt, environment) in enumerate(tried.items()):
            plan = {"at": begin + number * TURN_SECONDS, "hold": hold - number * TURN_SECONDS}
            pods[attempt] = _pod(tenant, f"attempt-{number}", way, plan | {"environment": environment})
        tenant.start(*pods.values())
        end = time.monotonic() + START_SECONDS + hold + LATE_SECONDS
        return {attempt: _outcome(tenant, pod["metadata"]["name"], end) for attempt, pod in pods.items()} | absent


def commands(harness: Harness, way: Way) -> dict[str, Any]:
    """The control program's commands beside a client of another pod, in another namespace where the way has that: by a
    user without privileges, then by root with the capabilities that a container has by default."""
    outcome: dict[str, Any] = {}
    if Part.DAEMON not in way.parts:
        return {"absent": Part.DAEMON}
    for who, enforce in (("user", way.standard), ("root", "privileged")):
        with clients(harness, way, enforce) as tenant, _others(harness, way, tenant) as others:
            outcome[who] = _commands(way, others, tenant, who)
    with clients(harness, way) as tenant:
        return outcome | {"new_client_after": served(tenant, "afterwards").as_json()}


def _others(harness: Harness, way: Way, tenant: Clients) -> AbstractContextManager[Clients]:
    return clients(harness, way) if Part.NAMESPACES in way.parts else nullcontext(tenant)


def _commands(way: Way, others: Clients, tenant: Clients, who: str) -> dict[str, Any]:
    [neighbour] = others.neighbours("", 1)
    daemon = way.daemon()
    if daemon is None or daemon.server is None:
        raise AssertionError(f"no MPS server of {way.name} serves {neighbour}")
    plan = {"way": "control", "server": daemon.server, "client": 0}
    pod = _pod(tenant, f"control-{who}", way, plan)
    if who == "root":
        escapes.as_root(pod)
    try:
        tenant.start(pod)
    except CommandError as error:
        return {"refused": error.text[-300:], "neighbour_hurt": False}
    tenant.wait_event(f"control-{who}", "over", COMMAND_LIMIT_SECONDS)
    lines = tenant.events_of(f"control-{who}", "control")
    if any("FileNotFoundError" in line["answer"] for line in lines):
        raise AssertionError("the clients' image has no control program")
    time.sleep(SETTLE_SECONDS)
    return {
        "answered": {line["command"]: line["answer"] for line in lines if line["code"] == 0 and line["answer"]},
        "asked": len(lines),
        "neighbour_hurt": not parts.alive(others, [neighbour]),
        "codes": parts.errors(others, [neighbour]),
    }


def _pod(tenant: Clients, name: str, way: Way, plan: dict[str, Any]) -> Object:
    """A pod of the program that tries to exceed what the way promises."""
    granted = {names.ENV_GRANTED_MEMORY: str(way.promise.memory or WITHOUT_LIMIT)}
    plan = plan | {"environment": granted | plan.get("environment", {})}
    environment = [{"name": "PROGRAM", "value": escapes.PROGRAM}]
    return tenant.pod(name, command=[sys.executable, "-c", escapes.PROGRAM, json.dumps(plan)], env=environment)


def _outcome(tenant: Clients, name: str, end: float) -> dict[str, Any]:
    """`end`: of the waiting for all of them, on the monotonic clock."""
    tenant.wait_event(name, "over", max(1.0, end - time.monotonic()))
    lines = {line["event"]: line for line in tenant.log(name)}
    client = lines.get("client", {})
    return {
        "sms": client.get("sms"),
        "free_mib": client.get("free_mib"),
        "memory_above_refused": client.get("above_refused"),
        "share_of_peak": lines.get("throughput", {}).get("share_of_peak"),
        "error": {key: lines["error"][key] for key in ("code", "text")} if "error" in lines else None,
        "told": observer(tenant, name),
    }
