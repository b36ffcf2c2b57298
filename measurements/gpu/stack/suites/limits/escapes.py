"""Everything that a tenant can try from inside a container: its effect, and the events about it.

Each attempt is a pod of its own. Meanwhile a neighbour checks its results. The escapes that MPS v2 leaves open are
known (docs/security.md): they are expected to be reported, and none to exceed the threads of its own grant.
"""

import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpushare.api import names
from gpushare.grant.model import most_contexts
from localcluster.kubectl import Object
from measurements.gpu.stack.suite import Findings
from measurements.gpu.stack.suites import parts
from tests.cluster.harness import Harness, Share, Tenant, wait_until
from tests.cluster.node import daemon_of, processes_of_pod

SHARE, PER_GPU, THREADS, CEILING, MEMORY_GIB = "escapes", 8, 10, 25, 8
PROGRAM = Path(__file__).with_name("tenant_program.py").read_text()
AT_ONCE = 6
START_SECONDS, TURN_SECONDS, HOLD_SECONDS, TOLD_SECONDS = 12, 1.5, 10, 25
TOLERANCE = 1.05
PARTITIONED = "CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING"
VISIBLE = "CUDA_VISIBLE_DEVICES"
NOBODY = "GPU-00000000-0000-0000-0000-000000000000"


@dataclass(frozen=True)
class Attempt:
    """`told`: the event that must come if the attempt exceeds its grant; with `always_told` in any case."""

    name: str
    environment: dict[str, str | None] = field(default_factory=dict)
    way: str = "plain"
    processes: int = 1
    told: str = "MemoryAboveGrant"
    always_told: bool = False


ATTEMPTS = (
    Attempt("nothing"),
    Attempt("limits-unset", {names.ENV_MEMORY: None, names.ENV_THREADS: None}),
    Attempt("memory-raised", {names.ENV_MEMORY: "0=100G"}),
    Attempt("memory-garbled", {names.ENV_MEMORY: "0=garbage"}),
    Attempt("memory-of-another-index", {names.ENV_MEMORY: "1=3G"}),
    Attempt("memory-of-another-uuid", {names.ENV_MEMORY: f"{NOBODY}=2G"}),
    Attempt("memory-managed", way="managed"),
    Attempt("memory-asynchronous", way="asynchronous"),
    Attempt("threads-raised", {names.ENV_THREADS: "100"}),
    Attempt("threads-garbled", {names.ENV_THREADS: "abc"}),
    Attempt("contexts-partitioned", {PARTITIONED: "1", names.ENV_THREADS: "100"}),
    Attempt("kernels-nested", way="nested"),
    Attempt("devices-first", {VISIBLE: "0"}),
    Attempt("devices-second", {VISIBLE: "1"}),
    Attempt("devices-none", {VISIBLE: ""}),
    Attempt("devices-another-uuid", {VISIBLE: NOBODY}),
    Attempt("without-mps", {names.ENV_PIPE_DIRECTORY: "/tmp/nowhere"}, told="NotAnMpsClient"),
    Attempt("more-processes", processes=3, told="AttachRefused", always_told=True),
)


def measure(harness: Harness, findings: Findings) -> None:
    options: dict[str, Any] = {
        "per_gpu": PER_GPU,
        "threads": {"default": THREADS, "max": CEILING},
        "memory": {"default": f"{MEMORY_GIB}Gi"},
    }
    with harness.share(SHARE, **options) as share, harness.namespace() as tenant:
        share.wait_capacity(PER_GPU)
        findings.figures["compute_mode"] = harness.gpu_node()["status"]["gpus"][0]["computeMode"]
        [neighbour] = tenant.neighbours(SHARE, 1)
        before = daemon_of(harness, share)
        findings.figures["attempts"] = attempts = dict[str, Any]()
        for first in range(0, len(ATTEMPTS), AT_ONCE):
            attempts |= _try(tenant, ATTEMPTS[first : first + AT_ONCE])
        for attempt in ATTEMPTS:
            _judge(attempt, attempts[attempt.name], findings)
        with findings.phase("control program"):
            findings.figures["control_program"] = _control(harness, share, tenant, neighbour, findings)
        with findings.phase("root of a user namespace"):
            findings.figures["root_of_a_namespace"] = _namespace_root(harness, findings)
        with findings.phase("debugger"):
            findings.figures["debugger"] = _debugger(tenant)
        with findings.phase("all contexts"):
            findings.figures["all_contexts"] = _all_contexts(tenant, findings)
        with findings.phase("the neighbour"):
            _unhurt(harness, share, tenant, neighbour, before, findings)
        share.apply(**options, enforcement="Terminate")
        share.wait_ready()
        with findings.phase("Terminate"):
            findings.figures["terminated"] = _terminated(tenant, findings)
        _unhurt(harness, share, tenant, neighbour, before, findings)


def _pod(tenant: Tenant, name: str, plan: dict[str, Any], **options: Any) -> Object:
    environment = [{"name": "PROGRAM", "value": PROGRAM}]
    # Not by a name on PATH: the image has the machine's interpreter where the machine has it.
    command = [sys.executable, "-c", PROGRAM, json.dumps(plan)]
    return tenant.pod(name, SHARE, command=command, env=environment, **options)


def _try(tenant: Tenant, attempts: tuple[Attempt, ...]) -> dict[str, Any]:
    """All at once, except for the throughput, which each measures alone."""
    begin = time.time() + START_SECONDS
    hold = HOLD_SECONDS + TURN_SECONDS * len(attempts)
    pods = []
    for number, attempt in enumerate(attempts):
        plan = {
            "environment": attempt.environment,
            "way": attempt.way,
            "processes": attempt.processes,
            "at": begin + number * TURN_SECONDS,
            "hold": hold - number * TURN_SECONDS,
        }
        pods.append(_pod(tenant, attempt.name, plan))
    tenant.start(*pods)
    outcomes = {}
    for attempt in attempts:
        tenant.wait_event(attempt.name, "over", START_SECONDS + hold + 60)
    for attempt in attempts:
        outcomes[attempt.name] = _outcome(tenant, attempt)
    tenant.delete_pods(*(attempt.name for attempt in attempts))
    return outcomes


def _outcome(tenant: Tenant, attempt: Attempt) -> dict[str, Any]:
    lines = {line["event"]: line for line in tenant.log(attempt.name)}
    client = lines.get("client", {})
    escaped = client.get("above_refused") is False
    if escaped or attempt.always_told:
        wait_until(
            f"{attempt.told} of {attempt.name}",
            lambda: attempt.told in parts.reasons(tenant, attempt.name),
            TOLD_SECONDS,
            lambda: parts.reasons(tenant, attempt.name),
        )
    return {
        "environment": attempt.environment,
        "way": attempt.way,
        "sms": client.get("sms"),
        "free_mib": client.get("free_mib"),
        "memory_above_grant_refused": client.get("above_refused"),
        "share_of_peak": lines.get("throughput", {}).get("share_of_peak"),
        "error": {key: lines["error"][key] for key in ("code", "text")} if "error" in lines else None,
        "told": parts.reasons(tenant, attempt.name),
    }


def _judge(attempt: Attempt, outcome: dict[str, Any], findings: Findings) -> None:
    past_mps = attempt.told == "NotAnMpsClient"
    share = outcome["share_of_peak"]
    if share is not None and not past_mps:
        bound = THREADS / 100 * TOLERANCE
        findings.expect("no client of MPS gets past its own grant of threads", share <= bound)
    if outcome["memory_above_grant_refused"] is False:
        findings.expect("whoever takes more memory than granted is told", attempt.told in outcome["told"])
    if attempt.name in ("nothing", "limits-unset", "memory-raised", "memory-managed", "memory-asynchronous"):
        refused = outcome["memory_above_grant_refused"]
        findings.expect(
            "the daemon's limit binds those who unset or raise theirs, and every kind of memory",
            refused or (findings.simulated and attempt.way != "plain"),
        )


def _control(harness: Harness, share: Share, tenant: Tenant, neighbour: str, findings: Findings) -> dict[str, Any]:
    """Every command of the control program, from a plain user, from the node's root, and from root of a user namespace.

    The attach broker hangs up on them. The daemon itself would obey the node's UID 0 (docs/mps.md).
    """
    server = daemon_of(harness, share)["serverPid"]
    uid = tenant.kubectl.get("pod", neighbour)["metadata"]["uid"]
    [client] = processes_of_pod(harness, uid, b"depart")
    plan = {"way": "control", "server": server, "client": client}
    outcome = {"server": server, "client": client, "user": _commands(tenant, _pod(tenant, "control-user", plan))}
    with harness.namespace("root", enforce="baseline") as other:
        outcome["root_of_the_node"] = _commands(other, as_root(_pod(other, "control-root", plan)))
        pod = as_root(_pod(other, "control-mapped-root", plan))
        pod["spec"]["hostUsers"] = False
        outcome["root_of_a_namespace"] = _commands(other, pod)
    for who in ("user", "root_of_the_node", "root_of_a_namespace"):
        answers = outcome[who]["answers"].values()
        findings.expect(
            "no command of a client is answered", not any(answer["code"] == 0 and answer["text"] for answer in answers)
        )
        # The image of a rehearsal has no control program: tests/cluster sends the commands themselves.
        there = not any("FileNotFoundError" in answer["text"] for answer in answers)
        findings.expect("the client has the control program", there or findings.simulated)
        findings.expect("no client sees or signals others", set(outcome[who]["others"]["seen"]) == {False})
    return outcome


def as_root(pod: Object) -> Object:
    pod["spec"]["securityContext"] = {"runAsUser": 0}
    pod["spec"]["containers"][0]["securityContext"] = {}
    return pod


def _namespace_root(harness: Harness, findings: Findings) -> dict[str, Any]:
    """Root of a user namespace may be a client, and has its limits in force like any other."""
    with harness.namespace("root", enforce="baseline") as other:
        pod = as_root(other.pod("limits-root", SHARE, "limits", "--throughput", "0"))
        pod["spec"]["hostUsers"] = False
        other.start(pod)
        seen = other.wait_event("limits-root", "limits", 60)
    findings.expect("root of a user namespace is a client within its limits", seen["problems"] == [])
    return seen


def _commands(tenant: Tenant, pod: Object) -> dict[str, Any]:
    tenant.start(pod)
    name = pod["metadata"]["name"]
    tenant.wait_event(name, "over", 150)
    lines = tenant.events_of(name, "control")
    answers = {line["command"]: {"code": line["code"], "text": line["answer"]} for line in lines}
    return {"answers": answers, "others": tenant.events_of(name, "others")[0]}


def _debugger(tenant: Tenant) -> list[dict[str, Any]]:
    tenant.start(_pod(tenant, "debugger", {"way": "debugger"}))
    tenant.wait_event("debugger", "over", 60)
    return [line for line in tenant.log("debugger") if line["event"] != "over"]


def _all_contexts(tenant: Tenant, findings: Findings) -> dict[str, Any]:
    """One container takes as many contexts as it gets. Another one starts beside it."""
    tenant.start(_pod(tenant, "contexts", {"way": "contexts", "hold": 2 * HOLD_SECONDS}))
    made = tenant.wait_event("contexts", "contexts")
    findings.expect(
        "one container gets its part of the contexts and no more", made["made"] == most_contexts(1, PER_GPU)
    )
    wait_until("it is told", lambda: "AttachRefused" in parts.reasons(tenant, "contexts"), TOLD_SECONDS)
    tenant.start(tenant.pod("beside", SHARE, "limits", "--throughput", "0"))
    beside = tenant.wait_event("beside", "limits", 60)
    findings.expect("another container starts beside it", beside["problems"] == [])
    tenant.wait_event("contexts", "over", 60)
    tenant.delete_pods("contexts", "beside")
    return {"made": made["made"], "error": made["error"], "told": parts.reasons(tenant, "contexts")}


def _terminated(tenant: Tenant, findings: Findings) -> dict[str, Any]:
    """Measures, with `enforcement: Terminate`, how long a client keeps memory above its grant."""
    tenant.start(_pod(tenant, "taker", {"environment": {names.ENV_MEMORY: "0=garbage"}, "hold": 60}))
    taken = tenant.wait_event("taker", "client")
    ended = tenant.wait_event("taker", "error", 60)
    wait_until("it is told", lambda: "ClientTerminated" in parts.reasons(tenant, "taker"), TOLD_SECONDS)
    findings.expect("Terminate ends who takes more memory than granted", ended["code"] == 810)
    figures = {"seconds": round(ended["at"] - taken["at"], 2), "code": ended["code"]}
    return figures | {"told": parts.reasons(tenant, "taker")}


def _unhurt(
    harness: Harness, share: Share, tenant: Tenant, neighbour: str, before: dict[str, Any], findings: Findings
) -> None:
    tenant.go_on([neighbour])
    after = daemon_of(harness, share)
    findings.figures["neighbour_checks"] = tenant.checks(neighbour)
    findings.expect("the neighbour goes on", parts.alive(tenant, [neighbour]) == [neighbour])
    keys = ("controlPid", "serverPid", "restarts")
    findings.expect(
        "daemon and server are who they were", [after[key] for key in keys] == [before[key] for key in keys]
    )
    if after["inForce"] is not None:
        findings.expect("its limits are what they were", after["inForce"] == before["inForce"])
