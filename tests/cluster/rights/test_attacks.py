"""Ways around the limits that somebody tried: each is carried out, and nothing comes of it."""

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from tests.cluster.claims import HELD, claim, claimed, with_claim
from tests.cluster.harness import Harness, Share, Tenant, wait_until
from tests.cluster.node import daemon_of

CONNECTION_FAILED = 805
LEAK = """
import os, socket, time
directory = os.open(os.environ["CUDA_MPS_PIPE_DIRECTORY"], os.O_PATH)
listener = socket.socket(socket.AF_UNIX)
listener.bind("/shared/leak")
os.chmod("/shared/leak", 0o777)
listener.listen(1)
connection, _ = listener.accept()
socket.send_fds(connection, [b"pipe"], [directory])
time.sleep(3600)
"""
"""The container that holds the slot passes its pipe directory on."""
ABUSE = """
import json, os, socket, subprocess, time
from gpushare.simulation import bin_dir
while True:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect("/shared/leak")
        break
    except OSError:
        connection.close()
        time.sleep(0.2)
_, (directory,), _, _ = socket.recv_fds(connection, 16, 1)
environment = os.environ | {"CUDA_MPS_PIPE_DIRECTORY": f"/proc/self/fd/{directory}"}
def control(command):
    done = subprocess.run([bin_dir() / "nvidia-cuda-mps-control"], input=command + "\\n", env=environment,
                          pass_fds=[directory], capture_output=True, text=True, timeout=20)
    return done.stdout.strip() + done.stderr.strip()
def attach():
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as control:
        control.settimeout(60)
        control.connect(f"/proc/self/fd/{directory}/control")
        control.recv(64)
        try:
            control.send(b"OUTBCRED\\0")
            control.send(bytes([2, 0, 0, 0]))
            return control.recv(64).decode()
        except ConnectionError:
            return ""
print(json.dumps({
    "event": "abuse",
    "attached": attach(),
    "uid": os.getuid(),
    "reached": os.path.exists(f"/proc/self/fd/{directory}/control"),
    "answers": [control(command) for command in ("get_server_list", "shutdown_server -f", "quit")],
}), flush=True)
time.sleep(3600)
"""
"""Root without a slot, and without capabilities: the MPS daemon itself would obey it."""


def pod_with_a_root_helper(tenant: Tenant, share: str) -> dict[str, Any]:
    pod = tenant.pod("leaky", share, command=["python3", "-c", LEAK])
    [app] = pod["spec"]["containers"]
    shared = {"volumeMounts": [{"name": "shared", "mountPath": "/shared"}]}
    helper = app | {
        "name": "helper",
        "command": ["python3", "-c", ABUSE],
        "resources": {},
        "securityContext": app["securityContext"] | {"runAsUser": 0, "runAsNonRoot": False},
    }
    pod["spec"]["containers"] = [app | shared, helper | shared]
    pod["spec"]["volumes"] = [{"name": "shared", "emptyDir": {}}]
    return pod


@pytest.fixture(scope="module")
def share(harness: Harness) -> Iterator[Share]:
    with harness.share("attacked", per_node=1) as share:
        yield share


def test_root_with_a_clients_pipe_directory_can_end_and_ask_nothing(harness: Harness, share: Share) -> None:
    with harness.namespace(enforce="baseline") as tenant:
        names = tenant.neighbours(share.name, 2)
        daemon = daemon_of(harness, share)
        tenant.start(pod_with_a_root_helper(tenant, share.name))
        abuse = wait_for_abuse(tenant)
        assert (abuse["uid"], abuse["reached"]) == (0, True), "the attack was not carried out"
        assert abuse["answers"] == ["", "", ""]
        assert abuse["attached"] == "", "it got a socket to the MPS server"
        wait_until("the event", lambda: [note for note in refusals(tenant, "leaky") if "NoGrant" in note], 30)
        tenant.go_on(names)
        now = daemon_of(harness, share)
        assert (now["controlPid"], now["serverPid"]) == (daemon["controlPid"], daemon["serverPid"])


WIDEN = """
import json, os, time
os.environ["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = "100"
from gpushare.simulation.client import SimulatedContext
context = SimulatedContext.create()
print(json.dumps({"event": "widened", "sms": context.sms}), flush=True)
time.sleep(3600)
"""
CROWD = """
import json, os, time
from gpushare.simulation.client import CudaError, SimulatedContext
reading, writing = os.pipe()
if os.fork() == 0:
    os.read(reading, 1)
    try:
        SimulatedContext.create()
        print(json.dumps({"event": "second", "error": 0}), flush=True)
    except CudaError as error:
        print(json.dumps({"event": "second", "error": error.code}), flush=True)
    time.sleep(3600)
context = SimulatedContext.create()
os.write(writing, b".")
time.sleep(3600)
"""
STALL = """
import json, os, socket, time
control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
control.connect(os.environ["CUDA_MPS_PIPE_DIRECTORY"] + "/control")
control.recv(64)
control.send(b"OUTBCRED\\0")
control.send(bytes([2, 0, 0, 0]))
message, (descriptor,), _, _ = socket.recv_fds(control, 64, 1)
print(json.dumps({"event": "stalls"}), flush=True)
time.sleep(3600)
"""
"""It has its socket to the MPS server, which waits for it to say who it is."""


def test_a_program_cannot_raise_threads_add_processes_or_delay_neighbours(harness: Harness, share: Share) -> None:
    with harness.namespace() as tenant:
        names = tenant.neighbours(share.name, 1)
        daemon = daemon_of(harness, share)
        for name, code in (("widen", WIDEN), ("crowd", CROWD), ("stall", STALL)):
            pod = tenant.pod(name, share.name, command=["python3", "-c", code])
            pod["metadata"]["annotations"] = {"gpushare.dev/threads": "10"}
            tenant.start(pod)
        assert tenant.wait_event("widen", "widened")["sms"] == 12
        assert tenant.wait_event("crowd", "second")["error"] == CONNECTION_FAILED
        tenant.wait_event("stall", "stalls")
        tenant.start(tenant.pod("late", share.name, "limits"))
        assert tenant.wait_event("late", "limits")["problems"] == []
        for name, reason in (("crowd", "TooManyProcesses"), ("stall", "AttachStalled")):
            assert reason in wait_until(f"the event about {name}", partial(refusals, tenant, name), 30)[0]
        tenant.go_on(names)
        now = daemon_of(harness, share)
        assert (now["controlPid"], now["serverPid"]) == (daemon["controlPid"], daemon["serverPid"])


RETURN = """
import json, os, sys, time
from gpushare.simulation.client import CudaError, SimulatedContext
again = sys.argv[1:] == ["again"]
try:
    context = SimulatedContext.create()
except CudaError as error:
    print(json.dumps({"event": "returned", "error": error.code}), flush=True)
    time.sleep(3600)
print(json.dumps({"event": "returned" if again else "began", "error": 0}), flush=True)
try:
    context.launch(600000)
    context.synchronize()
except CudaError:
    os.execv(sys.executable, [*sys.orig_argv, "again"])
"""
"""Its context was ended: it replaces its program, in the same process, and makes another one."""


def test_a_process_whose_context_was_ended_cannot_return_in_mid_kernel(harness: Harness, share: Share) -> None:
    with harness.namespace() as tenant:
        names = tenant.neighbours(share.name, 2)
        tenant.start(tenant.pod("victim", share.name, command=["python3", "-c", RETURN], grace=5))
        tenant.wait_event("victim", "began")
        tenant.kubectl.delete("pod", "victim", wait=False)
        assert tenant.wait_event("victim", "returned")["error"] == CONNECTION_FAILED
        [note] = wait_until("the event", partial(refusals, tenant, "victim"), 30)
        assert "ContextsEnded" in note
        wait_until("the victim is gone", lambda: not tenant.kubectl.find("pod", "victim"), 60)
        tenant.go_on(names)


OF_OUR_DRIVER = [{"cel": {"expression": 'device.driver == "gpushare.dev"'}}]


@pytest.fixture(scope="module")
def claimed_share(harness: Harness) -> Iterator[Share]:
    threads = {"default": 50, "max": 100}
    with harness.share("coveted", per_node=1, delivery="ResourceClaim", threads=threads) as share:
        yield share


def test_a_class_of_another_takes_no_part_of_a_share(harness: Harness, claimed_share: Share) -> None:
    """An administrator's class without selectors: no webhook of ours sees a claim of it."""
    name = "anything.example.com"
    harness.kubectl.apply(
        {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name}, "spec": {}}
    )
    with harness.namespace() as tenant:
        tenant.kubectl.create(claim("thief", name, {"threads": "100"}, selectors=OF_OUR_DRIVER))
        tenant.start(with_claim(tenant.pod("thief", claimed_share.name, *HELD), resourceClaimName="thief"))
        said = partial(messages, tenant, "thief", "by a DeviceClass that is none of gpushare")
        wait_until("the scheduler says why", said, 60, lambda: tenant.explain("thief"))
        tenant.start(claimed(tenant, "honest", claimed_share.name, "100", "2Gi"))
        assert tenant.wait_event("honest", "limits")["problems"] == []
        assert "allocation" not in tenant.kubectl.get("resourceclaim", "thief").get("status", {})
    harness.kubectl("delete", "deviceclass", name)


def test_a_claim_that_comes_after_its_pod_starts_nothing(harness: Harness, share: Share, claimed_share: Share) -> None:
    """The webhook saw no claim: it added no preStop hook, and let a slot stand beside it."""
    with harness.namespace() as tenant:
        tenant.start(with_claim(tenant.pod("early", share.name, *HELD), resourceClaimName="early"))
        both = tenant.pod("both", share.name, *HELD)
        both["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gpu"}]
        both["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": "both"}]
        tenant.start(both)
        for pod, words in (("early", "has no preStop hook"), ("both", f"beside gpushare.dev/{share.name}")):
            tenant.kubectl.create(claim(pod, f"{claimed_share.name}.gpushare.dev", {"threads": "10", "memory": "2Gi"}))
            wait_until(f"{pod} is told", partial(messages, tenant, pod, words), 90, partial(tenant.explain, pod))
            assert tenant.log(pod) == []


def messages(tenant: Tenant, pod: str, words: str) -> list[str]:
    """The messages of the pod's events that have these words."""
    return [event["message"] for event in tenant.kubernetes_events(pod) if words in event["message"]]


def refusals(tenant: Tenant, pod: str) -> list[str]:
    """The notes of the events about attaches that were refused to the pod."""
    return [event["message"] for event in tenant.kubernetes_events(pod) if event["reason"] == "AttachRefused"]


def wait_for_abuse(tenant: Tenant) -> dict[str, Any]:
    def said() -> list[dict[str, Any]]:
        text = tenant.kubectl("logs", "leaky", "--container=helper")
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]

    return wait_until("the attack", said, 90, lambda: tenant.explain("leaky"))[0]
