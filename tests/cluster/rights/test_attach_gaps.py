"""Clients that start while a part of ours is away, or while others crowd the broker: all become clients of MPS."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.harness import PATIENCE, Harness, Share, Tenant, wait_until
from tests.cluster.node import daemon_of, parent_of, processes_of_pod, signal_in_node
from tests.cluster.node_events import wait_node_event
from tests.cluster.rights.test_attacks import CONNECTION_FAILED

KILLS = 8
"""In a row; after eleven the broker's first process gives up."""
ATTACH_SECONDS = 10
ATTACHES = """
import json, os, subprocess, sys, time
from gpushare.simulation.client import CudaError, SimulatedContext
if sys.argv[1:] == ["once"]:
    began = time.monotonic()
    try:
        context = SimulatedContext.create()
        told = {"attached": True, "mps": context.under_mps}
    except CudaError as error:
        told = {"attached": False, "error": error.code}
    print(json.dumps({"event": "attach", "seconds": time.monotonic() - began, **told}), flush=True)
    sys.exit()
print(json.dumps({"event": "begins"}), flush=True)
while True:
    subprocess.run([sys.executable, "-c", os.environ["PROGRAM"], "once"])
"""
"""Process after process of one container makes its context, and ends."""
HESITATES = """
import json, os, select, socket, time
from gpushare.simulation import client
connect = client.connect
def slowly(path, seconds, kind=socket.SOCK_STREAM):
    sock = connect(path, seconds, kind)
    if path.endswith("/control") and not os.path.exists("/tmp/go-on"):
        select.select([sock], [], [])
        print(json.dumps({"event": "greeted"}), flush=True)
        while not os.path.exists("/tmp/go-on"):
            time.sleep(0.05)
    return sock
client.connect = slowly
try:
    told = {"attached": True, "mps": client.SimulatedContext.create().under_mps}
except client.CudaError as error:
    told = {"attached": False, "error": error.code}
print(json.dumps({"event": "attach", **told}), flush=True)
"""
"""A process that was greeted, and asks to attach once it is told to go on."""
FLOODS = """
import os, socket, sys, time
path = os.environ["CUDA_MPS_PIPE_DIRECTORY"] + "/control"
for _ in range(3):
    if os.fork() == 0:
        break
else:
    print('{"event": "floods"}', flush=True)
while True:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        try:
            sock.connect(path)
        except OSError:
            time.sleep(0.01)
"""
"""Four processes that connect and hang up, as fast as they can; the first alone says so."""


@pytest.fixture(scope="module")
def share(harness: Harness) -> Iterator[Share]:
    with harness.share("gaps", per_node=1) as share:
        yield share


def attacher(tenant: Tenant, share: str, name: str) -> dict[str, Any]:
    pod = tenant.pod(name, share, command=["python3", "-c", ATTACHES])
    pod["spec"]["containers"][0]["env"] = [{"name": "PROGRAM", "value": ATTACHES}]
    return pod


def attaches(tenant: Tenant, name: str) -> list[dict[str, Any]]:
    return tenant.events_of(name, "attach")


def hesitating(harness: Harness, tenant: Tenant, share: Share) -> Path:
    """Returns what makes the client `hesitates`, which was greeted, go on."""
    tenant.start(tenant.pod("hesitates", share.name, command=["python3", "-c", HESITATES]))
    tenant.wait_event("hesitates", "greeted")
    (process,) = processes_of_pod(harness, tenant.kubectl.get("pod", "hesitates")["metadata"]["uid"], b"go-on")
    return harness.in_node(f"/proc/{process}/root/tmp") / "go-on"


def broker_of(harness: Harness, share: Share) -> dict[str, Any]:
    """broker.json of the share's GPU."""
    states = ((path / "state.json", path / "broker/broker.json") for path in harness.gpu_dirs().values())
    written: dict[str, Any] = next(
        json.loads(broker.read_text())
        for state, broker in states
        if json.loads(state.read_text())["share"] == share.name
    )
    return written


def processes(harness: Harness, share: Share, program: bytes) -> list[int]:
    (pod,) = harness.system.items("pods", f"--selector=gpushare.dev/share={share.name}")
    return processes_of_pod(harness, pod["metadata"]["uid"], program)


def broker_process(harness: Harness, share: Share) -> int:
    """The broker itself, which its first process started; 0 while there is none."""
    pids = processes(harness, share, b"mps-broker")
    return next((pid for pid in pids if parent_of(harness, pid) in pids), 0)


def test_a_broker_killed_eight_times_keeps_nobody_from_mps(harness: Harness, share: Share) -> None:
    """Three containers attach all the time, so most kills are in the midst of an attach."""
    with harness.namespace() as tenant:
        names = [f"starts-{number}" for number in range(3)]
        tenant.start(*(attacher(tenant, share.name, name) for name in names))
        for name in names:
            wait_until("it attaches", lambda name=name: len(attaches(tenant, name)) > 1)
        server, gaps = daemon_of(harness, share)["serverPid"], []
        for number in range(1, KILLS + 1):
            before = broker_process(harness, share)
            came = {name: len(attaches(tenant, name)) for name in names}
            greeted = hesitating(harness, tenant, share) if number == 1 else None
            signal_in_node(harness, before, "KILL")
            killed = time.monotonic()
            if greeted is not None:
                greeted.touch()
            wait_until("a successor", lambda: broker_process(harness, share) not in (0, before))  # noqa: B023
            gaps.append(time.monotonic() - killed)
            wait_until("it serves", lambda: broker_of(harness, share)["restarts"] == number)  # noqa: B023
            for name in names:
                wait_until("clients attach", lambda: len(attaches(tenant, name)) > came[name] + 1)  # noqa: B023
        assert tenant.wait_event("hesitates", "attach") == {"event": "attach", "attached": True, "mps": True}
        told = [event for name in names for event in attaches(tenant, name)]
        assert [event for event in told if event["attached"] and not event["mps"]] == []
        failed = [event["error"] for event in told if not event["attached"]]
        assert set(failed) <= {CONNECTION_FAILED}, "one that was accepted a moment ago may see its broker end"
        assert len(failed) <= 2, "each within half a millisecond of its being accepted"
        longest = max(event["seconds"] for event in told)
        print("s until the next process", gaps, "longest attach", longest, "of", len(told), "failed", len(failed))
        assert longest < ATTACH_SECONDS * PATIENCE
        assert daemon_of(harness, share)["serverPid"] == server, "the MPS server did not hang"
        assert min(gaps) < 1.0, "at once; a busy machine may take longer now and then"
        assert "was killed by signal 9" in wait_node_event(harness, "BrokerRestarted")
        (pod,) = harness.system.items("pods", f"--selector=gpushare.dev/share={share.name}")
        assert [status["restartCount"] for status in pod["status"]["containerStatuses"]] == [0, 0]


def test_a_supervisor_that_is_killed_keeps_nobody_from_mps(harness: Harness, share: Share) -> None:
    """Its daemon ends with it, and so do the clients' contexts; who comes meanwhile waits at the broker."""
    with harness.namespace() as tenant:
        share.wait_ready()
        tenant.start(attacher(tenant, share.name, "starts"))
        wait_until("it attaches", lambda: len(attaches(tenant, "starts")) > 1)
        daemon = daemon_of(harness, share)["controlPid"]
        (supervisor,) = processes(harness, share, b"mps-supervisor")
        signal_in_node(harness, supervisor, "KILL")
        wait_until("another daemon", lambda: daemon_of(harness, share).get("controlPid") not in (None, daemon), 60)
        came = len(attaches(tenant, "starts"))
        wait_until("clients attach", lambda: len(attaches(tenant, "starts")) > came + 2, 60)
        outside = [event for event in attaches(tenant, "starts") if event["attached"] and not event["mps"]]
        assert outside == []
        share.wait_ready()


def test_pods_that_connect_in_a_loop_delay_no_neighbour(harness: Harness, share: Share) -> None:
    with harness.namespace() as tenant:
        share.wait_ready()
        tenant.start(attacher(tenant, share.name, "starts"))
        wait_until("it attaches", lambda: len(attaches(tenant, "starts")) > 5, 60)
        alone = attaches(tenant, "starts")
        tenant.start(tenant.pod("floods", share.name, command=["python3", "-c", FLOODS]))
        tenant.wait_event("floods", "floods")
        came = len(attaches(tenant, "starts"))
        wait_until("it attaches meanwhile", lambda: len(attaches(tenant, "starts")) > came + 10, 60)
        beside = attaches(tenant, "starts")[came + 1 :]
        median = [sorted(event["seconds"] for event in events)[len(events) // 2] for events in (alone, beside)]
        print("s to attach, alone and beside the flood", median, max(event["seconds"] for event in beside))
        assert [event for event in beside if not event["attached"] or not event["mps"]] == []
        assert median[1] < median[0] + 1.0
        tenant.delete_pods("floods")
