"""Ways around the count of a container's processes and contexts, and around its identity: each is carried out."""

from collections.abc import Iterator
from typing import Any

import pytest

from gpushare.grant.model import most_contexts
from tests.cluster.harness import Harness, Share, Tenant, wait_until
from tests.cluster.node import daemon_of
from tests.cluster.rights.forger import FORGER

CONNECTION_FAILED, TERMINATED = 805, 810
HELPED = """
import json, os, signal, socket, time
from gpushare.simulation import client
helpers = []
passed, connect = client._server_socket, client.connect
def by_a_helper(path, seconds, kind=socket.SOCK_STREAM):
    if not path.endswith("/control"):
        return connect(path, seconds, kind)
    sock = socket.socket(socket.AF_UNIX, kind)
    sock.settimeout(seconds)
    reading, writing = os.pipe()
    helper = os.fork()
    if not helper:
        sock.connect(path)
        os.write(writing, b".")
        time.sleep(3600)
    helpers.append(helper)
    os.read(reading, 1)
    return sock
def without_it(control):
    try:
        return passed(control)
    finally:
        while helpers:
            os.kill(helpers[-1], signal.SIGKILL)
            os.waitpid(helpers.pop(), 0)
client.connect, client._server_socket = by_a_helper, without_it
errors = []
for _ in range(12):
    reading, writing = os.pipe()
    if not os.fork():
        try:
            context, error = client.SimulatedContext.create(), 0
        except client.CudaError as refused:
            error = refused.code
        os.write(writing, json.dumps(error).encode())
        time.sleep(3600)
    errors.append(json.loads(os.read(reading, 16)))
print(json.dumps({"event": "helped", "errors": errors}), flush=True)
time.sleep(3600)
"""
"""Twelve processes; a helper of each connects for it, lives until the attach is done, and ends."""
FORGE = f"""
import json, socket, time
{FORGER}
from gpushare.simulation import client, wire
forger, send = start_forger(), wire.Channel.send
def forged(self, message):
    if message["op"] != "hello":
        return send(self, message)
    socket.send_fds(forger, [wire.encode(message)], [self.sock.fileno()])
    assert int.from_bytes(forger.recv(4), "little", signed=True) > 0
wire.Channel.send = forged
context = client.SimulatedContext.create()
print(json.dumps({{"event": "forged"}}), flush=True)
try:
    context.launch(600000)
    context.synchronize()
except client.CudaError as error:
    print(json.dumps({{"event": "ended", "error": error.code}}), flush=True)
time.sleep(3600)
"""
"""The MPS server hears the PID of another process from it, and it computes."""
HOARD = """
import json, time
from gpushare.simulation.client import CudaError, SimulatedContext
for _ in range(12):
    SimulatedContext.create().close()
held, error = [], 0
while not error and len(held) < 48:
    try:
        held.append(SimulatedContext.create())
    except CudaError as refused:
        error = refused.code
print(json.dumps({"event": "hoarded", "made": len(held), "error": error}), flush=True)
time.sleep(3600)
"""
"""More contexts one after the other than it may have at once; then as many as it gets."""


@pytest.fixture(scope="module")
def strict(harness: Harness) -> Iterator[Share]:
    """Two processes for each client, and `enforcement: Terminate`."""
    threads, memory = {"default": 12, "max": 25}, {"default": "8Gi"}
    clients = {"perGpu": 8, "processes": 2, "threads": threads, "memory": memory}
    with harness.share("strict", per_node=1, clients=clients, enforcement="Terminate") as share:
        yield share


def test_helpers_let_in_no_more_processes_than_granted(harness: Harness, strict: Share) -> None:
    with harness.namespace() as tenant:
        tenant.start(tenant.pod("helped", strict.name, command=["python3", "-c", HELPED]))
        errors = tenant.wait_event("helped", "helped")["errors"]
        assert errors.count(0) <= 2
        assert set(errors) == {0, CONNECTION_FAILED}
        wait_until("the event", lambda: [note for note in refusals(tenant, "helped") if "TooManyProcesses" in note], 30)
        wait_until("the others are told", lambda: has_event(tenant, "helped", "NeverAttached"), 30)
        wait_until("they are ended", lambda: has_event(tenant, "helped", "ClientTerminated"), 30)


def test_a_forged_pid_harms_nobody_at_departure_and_is_found_and_ended(harness: Harness, strict: Share) -> None:
    with harness.namespace(enforce="privileged") as tenant:
        names = tenant.neighbours(strict.name, 2)
        wait_until("they are listed", lambda: daemon_of(harness, strict)["contexts"] == len(names), 15)
        tenant.start(forger(tenant, "leaves", strict.name))
        tenant.wait_event("leaves", "forged")
        wait_until("it is listed", lambda: daemon_of(harness, strict)["contexts"] == len(names) + 1, 15)
        tenant.kubectl.delete("pod", "leaves", wait=False)
        wait_until("it is gone", lambda: not tenant.kubectl.find("pod", "leaves"), 60)
        tenant.go_on(names)
        tenant.start(forger(tenant, "stays", strict.name))
        tenant.wait_event("stays", "forged")
        wait_until("it is told", lambda: has_event(tenant, "stays", "ClientNotListed"), 45)
        assert tenant.wait_event("stays", "ended", 30)["error"] == TERMINATED
        wait_until("it is signalled", lambda: has_event(tenant, "stays", "ProcessEnded"), 30)
        tenant.go_on(names)


def test_one_slot_cannot_take_all_contexts(harness: Harness, strict: Share) -> None:
    with harness.namespace() as tenant:
        tenant.start(tenant.pod("hoard", strict.name, command=["python3", "-c", HOARD]))
        hoarded = tenant.wait_event("hoard", "hoarded")
        assert (hoarded["made"], hoarded["error"]) == (most_contexts(2, 8), CONNECTION_FAILED)
        wait_until("the event", lambda: [note for note in refusals(tenant, "hoard") if "TooManyContexts" in note], 30)
        tenant.start(tenant.pod("late", strict.name, "limits"))
        assert tenant.wait_event("late", "limits")["problems"] == []


def forger(tenant: Tenant, name: str, share: str) -> dict[str, Any]:
    """A pod that may make namespaces: its seccomp profile is Kubernetes' default."""
    pod = tenant.pod(name, share, command=["python3", "-c", FORGE])
    del pod["spec"]["securityContext"]["seccompProfile"]
    return pod


def has_event(tenant: Tenant, pod: str, reason: str) -> bool:
    return any(event["reason"] == reason for event in tenant.kubernetes_events(pod))


def refusals(tenant: Tenant, pod: str) -> list[str]:
    """The notes of the events about attaches that were refused to the pod."""
    return [event["message"] for event in tenant.kubernetes_events(pod) if event["reason"] == "AttachRefused"]
